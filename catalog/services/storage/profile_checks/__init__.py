"""Checks of a storage profile: whether the server and its clients can use the store as configured.

``runner`` runs the checks in order. ``connection`` checks the endpoint and the clock, ``requests`` the
profile's key, bucket and region, ``objects`` reads and writes through the server's own store, and
``clients`` uses the credentials that clients get.
"""
