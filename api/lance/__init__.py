"""The Lance Namespace REST protocol. One class an operation, named as in the specification."""
