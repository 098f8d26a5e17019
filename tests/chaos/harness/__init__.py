"""The fault harness: clients of both protocols, faults, a recorded history, and its judges.

``python -m tests.chaos.harness`` (``make chaos``) starts a whole Monodon of its own, loads it, breaks
its parts, and judges what every client was answered. docs/correctness.md says what is promised.
"""
