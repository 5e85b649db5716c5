"""`import fdb` in Spark's processes: the simulated binding. The session's PYTHONPATH names this folder (conftest.py)."""

import sys

import tenure.testing.fdb

sys.modules[__name__] = tenure.testing.fdb
