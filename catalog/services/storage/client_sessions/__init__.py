"""Temporary credentials for the directories of one table, for each kind of object store.

    token_services      open a session, with pauses after failures
    s3                  STS AssumeRole, with a session policy
    gcs                 Google's token exchange, with a Credential Access Boundary
    azure               shared access signatures for a directory
    staged_locations    reservations of locations whose tables do not exist yet
    late_writes         what clients may still write when their credentials have expired

``token_services`` loads the module of a kind when it needs it, because their libraries are large.
"""
