"""The decisions of the maintenance scheduler, as pure functions without database access.

    costs      what a job is expected to cost, learned from past jobs
    turns      the order of the tables of a namespace: saving × use / cost, and waiting
    fairness   the order of namespaces: those that have used the least time come first
    holds      tables that must wait: after failures, useless jobs and conflicts with writers
    limits     running jobs and budgets under a policy
    rounds     one round of the scheduler, which puts the above together
    queue      the order in which workers take queued jobs

``catalog.services`` reads the facts from the database and starts the jobs; ``benchmarks.simulation``
runs the same functions on a virtual clock.
"""
