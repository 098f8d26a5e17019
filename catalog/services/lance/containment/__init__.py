"""Containment of Lance: a file that ends a web process, or occupies it, does so a few times only.

Lance trusts the numbers in data files and index files. A client that may write the files of a table can make it
allocate more memory than there is, which ends the process, or read for minutes. Nobody can check all such numbers
before Lance reads them. Therefore the web processes of a server note their calls of Lance in shared memory
(``journal``). When a process has ended during calls, their tables are suspect. Calls for them
run without those of other principals in their process (``calls``), so that the next end of a process has one cause: then the server refuses
the table, or the principal, for a while. ``watcher`` ends a
process that uses too much memory. Calls that only take long have limits of their own (``time_limits``).

Jobs and commands note nothing: each runs in a process of its own.
"""
