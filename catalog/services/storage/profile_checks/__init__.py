"""Tests of storage profiles: whether the server and its clients can use the store as configured.

``tests`` requests, runs and lists tests, which are rows. ``runner`` runs the checks in order:
``connection`` checks the endpoint and the clock, ``access`` the key, the bucket and the region, ``objects``
reads and writes through the server's own store, and ``clients`` uses what clients get.
"""
