"""The names a user needs, and nothing else."""

import tomllib
from pathlib import Path

import tenure

PROJECT = Path(__file__).parent.parent / "pyproject.toml"

NAMES = {
    "open", "Store", "Queue", "Claim",
    "NewJob", "NotFound", "Enqueued", "Delivery", "Job", "Policy", "GroupPolicy", "Backoff", "Rate", "Quota", "Where", "Event",
    "ManualClock", "SystemClock",
    "TenureError", "InvalidArgument", "SettingsError", "LeaseLost", "AlreadySettled", "KeyConflict", "QueueFull", "QueueNotEmpty",
    "QuotaExceeded", "RateLimited", "TooLarge",
    "WaitTimeout", "JournalTrimmed", "SnapshotExpired", "StoreError", "OpenError", "UnknownEngine", "StoreLocked", "FormatError", "StoreClosed",
    "Unavailable", "Corrupt", "Unauthenticated", "Forbidden",
    "App", "Flow", "chain", "group", "Retry", "Dead", "Snooze", "current_job", "TaskFailed",
    "__version__",
}  # fmt: skip


def test_all():
    assert set(tenure.__all__) == NAMES
    assert tenure.__all__ == sorted(tenure.__all__)
    for name in tenure.__all__:
        assert hasattr(tenure, name)


def test_nothing_else_is_there_but_modules():
    others = {name for name in vars(tenure) if not name.startswith("_")} - NAMES
    assert all(type(getattr(tenure, name)).__name__ == "module" for name in others), others


def test_every_error_a_user_can_catch_is_there():
    from tenure import errors

    engines_only = {"Conflict", "CommitUnknown"}
    raised = {name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)}
    assert raised - engines_only <= NAMES


def test_the_version_is_the_projects():
    assert tenure.__version__ == tomllib.loads(PROJECT.read_text())["project"]["version"]
