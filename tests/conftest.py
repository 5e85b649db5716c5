"""For every test: a busy machine is slow, which is no failure of a property; and the same cases in every run, unless deep."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "patient",
    deadline=None,
    derandomize=os.environ.get("HYPOTHESIS_PROFILE") != "deep",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")
