"""replay, purge, cancel, pause, configure."""

from __future__ import annotations

import pytest

from tenure.cli.maintenance import changed
from tenure.model.retry import Backoff, Policy
from tenure.model.tokens import TOKEN_COUNT
from tests.cli.conftest import Shell


def test_replay_by_what_it_died_of(shell: Shell):
    timeout = shell.kill("emails", "a", "Timeout: slow")
    other = shell.kill("emails", "b", "NoSuchAddress")
    dry = shell("replay", "emails", "--error", "Timeout", "--dry-run")
    assert dry.code == 0
    assert "would replay 1 dead job of emails" in dry.out
    assert shell.json("counts", "emails").object["dead"] == 2
    did = shell.json(
        "replay", "emails", "--error", "Timeout", "--since", "1h", "--before", "now", "--reason", "failed"
    ).object
    assert (did["count"], did["ids"], did["skipped"], did["dry_run"]) == (1, [timeout], [], False)
    found = shell.json("get", "emails", timeout).object
    assert (found["state"], found["attempt"], found["token"] & TOKEN_COUNT, found["replays"]) == ("ready", 0, 1, 1)
    assert shell.json("dead", "emails").object["id"] == other
    assert shell("replay", "emails", "--since", "2000-01-01", "--before", "2001-01-01").code == 0


def test_replay_by_id_says_what_is_not_dead(shell: Shell):
    dead = shell.kill("emails", "a", "x")
    alive = shell.enqueue("emails", "b")
    ran = shell("replay", "emails", dead, alive)
    assert ran.code == 1
    assert f"not dead, left alone: {alive}" in ran.out
    assert "replayed 1 dead job" in ran.out


def test_replay_spread_over_time_and_all(shell: Shell):
    for n in range(12):
        shell.kill("emails", f"{n}", "x")
    ran = shell("replay", "emails", "--all", "--rate", "0.1")
    assert "replayed 12 dead jobs" in ran.out
    assert "and 2 more" in ran.out
    assert "the last becomes ready" in ran.out
    counts = shell.json("counts", "emails").object
    assert (counts["ready"], counts["scheduled"]) == (1, 11)


def test_replay_must_be_told_which(shell: Shell):
    shell.kill("emails", "a", "x")
    ran = shell("replay", "emails")
    assert ran.code == 2
    assert "--all" in ran.err
    assert shell("replay", "emails", "--all", "--rate", "0").code == 2


def test_purge_asks_where_it_can(shell: Shell):
    shell.kill("emails", "a", "x")
    ran = shell("purge", "emails")
    assert ran.code == 2
    assert "--yes" in ran.err
    assert shell.json("counts", "emails").object["dead"] == 1
    assert shell("purge", "emails", "dead", "--yes").out == "removed 1 dead job of emails\n"
    assert shell.json("purge", "emails", "-y").object["purged"] == 0
    assert shell("purge", "emails", "leased", "--yes").code == 2


def test_cancel(shell: Shell):
    one, two = shell.enqueue("emails", "a"), shell.enqueue("emails", "b")
    assert shell("cancel", "emails", one).out == f"cancelled {one}\n"
    ran = shell.json("cancel", "emails", one, two)
    assert ran.code == 1
    assert [line["cancelled"] for line in ran.lines] == [False, True]


def test_configure_changes_what_is_given(shell: Shell):
    assert shell.json("enqueue", "emails", "x").code == 0
    assert shell.json("configure", "emails").object["policy"]["max_attempts"] == 5
    ran = shell.json("configure", "emails", "--max-attempts", "3", "--retention", "1d", "--max-waiting", "9")
    assert ran.code == 0
    ran = shell.json("configure", "emails", "--lease", "1m", "--no-max-waiting", "--backoff-on-expiry")
    policy = ran.object["policy"]
    assert (policy["max_attempts"], policy["retention"], policy["lease"]) == (3, 86_400, 60)
    assert (policy["max_waiting"], policy["backoff_on_expiry"]) == (None, True)
    assert "24 h" in shell("configure", "emails").out
    assert shell.json("configure", "emails", "--reset").object["policy"]["max_attempts"] == 5
    assert shell("configure", "emails", "--max-attempts", "0").code == 2
    assert shell("configure", "emails", "--max-waiting", "3", "--no-max-waiting").code == 2


def test_configure_sets_and_lifts_limits(shell: Shell):
    ran = shell.json("configure", "emails", "--max-leased", "8", "--rate", "100/m", "--burst", "5")
    assert (ran.object["policy"]["max_leased"], ran.object["policy"]["rate"]) == (
        8, {"jobs": 100.0, "per": 60.0, "burst": 5},
    )  # fmt: skip
    shown = shell("configure", "emails").out
    assert "100/m (burst 5)" in shown
    assert shell.json("configure", "emails", "--burst", "7").object["policy"]["rate"]["burst"] == 7
    lifted = shell.json("configure", "emails", "--no-rate", "--no-max-leased").object["policy"]
    assert (lifted["rate"], lifted["max_leased"]) == (None, None)
    assert shell("configure", "emails", "--rate", "fast").code == 2
    assert shell("configure", "emails", "--burst", "7").code == 2
    assert shell("configure", "emails", "--rate", "5/s", "--no-rate").code == 2


@pytest.mark.parametrize(
    ("changes", "backoff"),
    [
        ({"kind": "fixed", "base": 1000.0}, Backoff.fixed(1000)),
        ({"kind": "linear", "base": 2.0}, Backoff("linear", 2.0, 2.0, 900.0, "none")),
        ({"kind": "exponential", "factor": 3.0}, Backoff("exponential", 5.0, 3.0, 900.0, "full")),
        ({"kind": "fixed", "jitter": "equal"}, Backoff("fixed", 5.0, 2.0, 5.0, "equal")),
        ({"cap": 60.0}, Backoff("exponential", 5.0, 2.0, 60.0, "full")),
    ],
)
def test_the_parts_of_a_backoff(changes: dict[str, object], backoff: Backoff):
    made = changed(Policy(), changes).backoff
    assert [made.delay_ms(n, 0.5) for n in (1, 2, 9)] == [backoff.delay_ms(n, 0.5) for n in (1, 2, 9)]
    assert made.jitter == backoff.jitter
