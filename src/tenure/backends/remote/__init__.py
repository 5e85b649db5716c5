"""A store behind HTTP, seen from its client (docs/protocol.md)."""
