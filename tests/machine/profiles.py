"""How long the property tests look. HYPOTHESIS_PROFILE=deep looks for an hour instead of a minute, elsewhere each time.

Otherwise they look at the same cases in every run: a failure then is of what was changed, and deep runs find the rest.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
#: Seconds a test may take: pytest's own limit is for tests that hang.
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
