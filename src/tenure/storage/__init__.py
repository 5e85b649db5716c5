"""Storage as bytes: the interface of engines (`engine`), the keys (`keyspace`), the values (`records`)."""
