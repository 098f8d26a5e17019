"""Measures Monodon against Lance's reference server and against PostgreSQL itself.

    python -m benchmarks                 reads and commits, about 5 minutes (--quick: 1 minute)
    python -m benchmarks scale           10,000 tables against 1,000,000
    python -m benchmarks iceberg         the Iceberg protocol, about 5 minutes (--quick: 1 minute)

Everything runs on loopback, in a temporary directory that is removed at the end. The sides of a comparison
take turns, several short rounds each, because a shared machine drifts: read the ratios, not the absolutes.
"""
