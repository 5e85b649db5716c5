"""The client of a store behind HTTP (docs/protocol.md)."""
