"""The words of the queue: pure, frozen values and the decisions made on them. No bytes, no I/O, no clock."""
