"""Object stores for tests: real servers on loopback, or a store that the environment names."""
