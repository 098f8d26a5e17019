"""Iceberg metadata as plain dicts of decoded JSON: updates, requirements, files and scans.

Spec: https://iceberg.apache.org/spec/ and the REST catalog's TableUpdate and TableRequirement.
Nothing here reads or writes files. Documents are never changed in place, so they may be shared.
"""
