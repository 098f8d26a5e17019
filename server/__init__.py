"""Runs Monodon on one machine: PostgreSQL, Valkey, web, worker and beat under one foreground supervisor.

This package imports neither Django nor the rest of Monodon. Only tests and benchmarks import it, to start a
throwaway database.
"""
