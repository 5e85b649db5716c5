"""Profiles of the property tests. HYPOTHESIS_PROFILE=deep runs for an hour instead of a minute, with new cases.

Otherwise every run has the same cases: a failure then comes from a change of the code, and deep runs find the rest.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
#: The timeout of a test, in seconds: pytest's own limit is for tests that hang.
PATIENCE = 0 if DEEP else 300


def looking(examples: int, steps: int = 40) -> settings:
    return settings(
        max_examples=examples * 40 if DEEP else examples,
        stateful_step_count=steps * 3 if DEEP else steps,
        deadline=None,
        derandomize=not DEEP,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
