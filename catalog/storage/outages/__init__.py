"""Object stores that do not answer, and the threads of this process that wait for them."""
