"""The protocol of S3: what clients may do, and their requests."""
