"""The conformance suite: what every store of Tenure does, as tests (DESIGN section 5, row by row).

A store's author puts this in a file of their own tests, and has run it all:

    from tenure.testing.conformance import *
    from tenure.testing.harness import Harness

    class MyHarness(Harness):
        def open(self, *, clock=None, sweep=False, quick=False):
            return my_store(self.path, clock=clock, sweep=sweep)

    @pytest.fixture
    def harness(tmp_path):
        return MyHarness(tmp_path / "data")

`harness` is the only fixture to provide: `tenure.testing.harness` says what it describes. What a store's traits or
its harness say it cannot do is skipped, with the reason. Every test ends with `store.check()`, which must be clean.

    enqueue order ttl dedup staging          what goes in
    quotas                                   what a tenant may put in
    claim any_queue groups waiting limits    what comes out, and when
    settle extend retries                    what becomes of it
    handover flows steps                     what follows it, and what it keeps
    requests                                 what is asked for again
    deadletters retention cancel sweeping    what is cleared away, or comes back
    restore                                  what is put in from elsewhere
    look events policies snapshots           what can be seen
    store_wide schedules                     all queues together
    clock races processes                    time, threads and processes
    arguments damage opening                 what is refused
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

# So that a failing assert in these modules, which pytest did not collect itself, shows its values.
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
