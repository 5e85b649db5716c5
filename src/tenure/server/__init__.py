"""The server: a store behind HTTP, for many processes and many tenants."""
