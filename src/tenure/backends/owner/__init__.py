"""The owner's socket: the process that has a store open serves the other processes of its host."""
