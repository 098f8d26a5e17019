"""Engines and libraries that speak Iceberg's REST protocol, each against a live server; `make engines`.

Each engine is a package here. Its configuration and its statements or program are files of their own,
which docs/iceberg-clients.md shows; `python -m tests.engines.guide` copies them there.
"""
