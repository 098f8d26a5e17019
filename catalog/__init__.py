"""The product: metadata, commits and governance. Works from a shell with no HTTP and no worker."""
