"""One class an operation, in the order of the specification."""
