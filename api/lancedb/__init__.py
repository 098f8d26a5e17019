"""The remote protocol of LanceDB's clients (``lancedb.connect("db://…", host_override=…)``).

It is a dialect of the Lance protocol: the same operations, with names that are relative to a database, and
with other spellings of some requests and answers. The header of ``api.lancedb.database`` selects it.
"""
