"""The interfaces: one thin package for each protocol. They never import each other."""
