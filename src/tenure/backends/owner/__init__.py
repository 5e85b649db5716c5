"""The owner's socket: the process that has a store open serves other processes on its host."""
