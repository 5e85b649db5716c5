"""The contract between the API and the backends: a backend's verbs, and how it notifies of changes."""
