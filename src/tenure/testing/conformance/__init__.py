"""The conformance suite: the behaviour of every Tenure store, as tests.

A store's author puts this into a test file:

    from tenure.testing.conformance import *
    from tenure.testing.harness import Harness

    class MyHarness(Harness):
        def open(self, *, clock=None, sweep=False, quick=False):
            return my_store(self.path, clock=clock, sweep=sweep)

    @pytest.fixture
    def harness(tmp_path):
        return MyHarness(tmp_path / "data")

`harness` is the only fixture to provide (`tenure.testing.harness`). Tests of what a store's traits or its harness
exclude are skipped, with the reason. Every test ends with `store.check()`, which must be clean.

    enqueue order ttl dedup staging          adding jobs
    quotas                                   limits of a tenant
    claim any_queue groups waiting limits    claiming jobs
    settle extend retries                    ending deliveries
    handover flows steps                     follow-up jobs, parents, steps and signals
    requests                                 repeated requests
    deadletters retention cancel sweeping    removing and replaying jobs
    restore                                  jobs from another store
    look events policies snapshots           queries
    store_wide schedules                     all queues together
    clock races processes                    time, threads and processes
    arguments damage opening                 errors
"""

from __future__ import annotations

from importlib import import_module

import pytest

THEMES = (
    "any_queue", "arguments", "cancel", "claim", "clock", "damage", "deadletters", "dedup", "enqueue", "events", "extend", "flows", "groups", "handover",
    "limits", "look",
    "opening", "order", "policies", "processes", "quotas", "races", "requests", "restore", "retention", "retries", "schedules", "settle",
    "snapshots", "staging", "steps", "store_wide", "sweeping", "ttl", "waiting",
)  # fmt: skip
FIXTURES = (
    "anywhere",
    "broken",
    "clock",
    "far",
    "flowing",
    "foldered",
    "grouped",
    "holding",
    "live",
    "ordered",
    "scheduling",
    "queue",
    "shared",
    "stepping",
    "store",
    "world",
)

# pytest rewrites asserts only in modules that it collects: this makes failing asserts show their values here too.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in ("world", *THEMES)))


def _gather() -> dict[str, object]:
    found: dict[str, object] = {}
    for theme in ("world", *THEMES):
        module = import_module(f"{__name__}.{theme}")
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", None) != module.__name__ and name not in FIXTURES:
                continue  # imported there from another theme
            if not name.startswith("test_") and not (name in FIXTURES and _is_fixture(thing)):
                continue
            if name in found and found[name] is not thing:
                raise ImportError(
                    f"two tests or fixtures are called {name}: the second, in {theme}, would hide the first"
                )
            found[name] = thing
    return found


def _is_fixture(thing: object) -> bool:
    return type(thing).__name__ == "FixtureFunctionDefinition" or hasattr(thing, "_pytestfixturefunction")


_gathered = _gather()
globals().update(_gathered)
__all__ = sorted(_gathered)
