"""The doors: one package a protocol, each thin. They never import each other."""
