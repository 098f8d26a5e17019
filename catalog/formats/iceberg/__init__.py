"""Iceberg metadata as plain dicts of decoded JSON: what a commit may do to it, and its files.

Spec: https://iceberg.apache.org/spec/ and the REST catalog's TableUpdate and TableRequirement.
Nothing here reads or writes; a document is never changed in place, so it may be shared.
"""
