"""The domain model: frozen values, and pure decisions on them. No bytes, no I/O, no clock."""
