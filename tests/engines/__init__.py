"""Engines and libraries that support Iceberg's REST protocol, each against a live server; `make engines`.

Each engine is a package. Its configuration and its statements or program are separate files,
which docs/iceberg-clients.md shows; `python -m tests.engines.guide` copies them there.
"""
