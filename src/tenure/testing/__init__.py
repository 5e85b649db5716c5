"""For programs that use Tenure: fixtures for pytest (`plugin.py`), and the bench they hand out (`bench.py`).

For authors of stores and engines: the suite every store must pass (`tenure.testing.conformance`), and its tools.

harness.py       what a store's author describes: how it is opened, what it can do
child.py         what the suite runs in other processes: python -m tenure.testing.child
conformance/     the tests, by theme; importing it needs pytest
"""
