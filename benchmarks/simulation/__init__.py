"""A simulation of the maintenance scheduler: many tables on a virtual clock (`make simulate`).

    fleet       tables with write patterns, as arrays; the effect of jobs on their figures
    jobs        what jobs really cost, and when they conflict with writers
    world       the virtual clock: writers, measurements, rounds of the scheduler, workers
    invariants  what must hold at every step
    report      results as a table, also for the documentation

The decisions are those of the product: ``catalog.scheduling``, ``catalog.read_costs`` and the plans of
the registered actions. No database, storage or worker is used.
"""
