"""The contract between the API and the backends: what a backend does, and how it says that something has changed."""
