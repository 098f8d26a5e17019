"""What keeps a benchmark from telling the truth.

BenchmarkError
├── ToolMissing
└── BadAnswers
"""


class BenchmarkError(Exception):
    """The message is complete and is printed without a traceback."""


class ToolMissing(BenchmarkError):
    pass


class BadAnswers(BenchmarkError):
    """A server refused or failed, so the figures are invalid."""
