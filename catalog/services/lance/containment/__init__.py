"""Containment of Lance: a file that ends a web process, or occupies it, does so a few times only.

Lance trusts the numbers in data files and index files. A client that may write the files of a table can make it
allocate more memory than there is, which ends the process, or read for minutes. Nobody can check all such numbers
before Lance reads them. Therefore the web processes of a server note their calls of Lance in shared memory
(``journal``).

When a process ends during calls, their tables and principals become suspect. A call for a suspect waits until no call
of another principal runs in its process (``calls``). If the process ends again, the cause is known, and the server
refuses calls for the table, or of the principal, for a while. ``watcher`` ends a process that uses too much memory.
Calls that only take long have limits of their own (``time_limits``).

Jobs and commands note nothing: each runs in a process of its own.
"""
