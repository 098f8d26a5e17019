"""Runs Monodon on one machine: PostgreSQL, Valkey, web, worker and beat under one foreground supervisor.

Nothing here imports Django or the rest of Monodon; the other way round only tests and benchmarks may, to
start a throwaway database.
"""
