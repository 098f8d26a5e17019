"""The operations whose requests or answers differ from those of the Lance protocol."""
