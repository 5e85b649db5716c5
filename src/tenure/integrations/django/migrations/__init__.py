"""The outbox's table."""
