"""For programs that use Leasehold: fixtures for pytest (`plugin.py`), and the bench they hand out (`bench.py`).

For authors of stores and engines: the suite every store must pass (`leasehold.testing.conformance`), and its tools.

harness.py       what a store's author describes: how it is opened, what it can do
child.py         what the suite runs in other processes: python -m leasehold.testing.child
conformance/     the tests, by theme; importing it needs pytest
"""
