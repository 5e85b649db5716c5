"""Implementations of the contract: the queue's logic on an engine in this process, on Redis, or in another process."""
