"""The interfaces over HTTP: a thin package per protocol. They never import each other."""
