"""For programs that use Tenure: fixtures for pytest (`plugin.py`), and the test bench that they provide (`bench.py`).

For authors of stores and engines: the suite that every store must pass (`tenure.testing.conformance`), and its tools.

harness.py       what a store's author provides: how to open the store, what it can do
child.py         the program that the suite runs in other processes: python -m tenure.testing.child
conformance/     the tests, by theme; importing it needs pytest
"""
