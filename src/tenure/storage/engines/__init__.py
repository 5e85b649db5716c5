"""One module an engine; each keeps its driver to itself, and none knows another."""
