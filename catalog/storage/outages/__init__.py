"""Object stores that do not answer, large files, and the threads of this process that wait for them."""
