"""Requests that carry an Idempotency-Key: what they do, they do once.

A change notes its key in its own transaction (``note``); the answer follows when it is known
(``keep_answer``). A refusal that would be the same again is noted after its rollback
(``keep_refusal``). Whoever comes with a noted key gets the noted answer.
"""

from datetime import timedelta

LIFETIME = timedelta(hours=24)
"""How long a client may go on repeating a request."""
LIFETIME_ISO = "PT24H"
