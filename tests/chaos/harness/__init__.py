"""The fault harness: clients of both protocols, faults, a recorded history, and its judges.

``python -m tests.chaos.harness`` (``make chaos``) starts its own Monodon, puts it under load, injects
faults, and checks the answers to all clients. docs/correctness.md lists the guarantees.
"""
