"""tenure quota."""

from __future__ import annotations

from tests.cli.conftest import Shell


def test_a_quota_is_set_shown_changed_and_lifted(shell: Shell):
    assert shell("enqueue", "emails", "hello", "--tenant", "acme").code == 0
    assert shell("quota").out == "no quotas\n"
    ran = shell.json("quota", "acme", "--max-waiting", "2", "--max-bytes", "64M", "--rate", "100/m")
    assert ran.code == 0
    assert ran.object["waiting"] == 1
    assert ran.object["bytes"] == 5
    assert ran.object["quota"]["max_bytes"] == 64 * 1024**2
    assert ran.object["quota"]["rate"] == {"jobs": 100.0, "per": 60.0, "burst": None}
    assert shell.json("quota", "acme", "--requests", "5/s").object["quota"]["max_waiting"] == 2
    shown = shell("quota").out
    assert "acme" in shown
    assert "1 of 2" in shown
    assert shell("enqueue", "emails", "hello", "--tenant", "acme").code == 0
    refused = shell("enqueue", "emails", "hello", "--tenant", "acme")
    assert refused.code == 1
    assert "tenure quota acme" in refused.err
    assert shell("quota", "acme", "--lift").out == "acme has no quota\n"
    assert shell("enqueue", "emails", "hello", "--tenant", "acme").code == 0


def test_what_makes_no_sense_is_refused(shell: Shell):
    assert shell("enqueue", "emails", "hello").code == 0
    assert shell("quota", "--max-waiting", "2").code == 2
    assert shell("quota", "one", "two").code == 2
    assert shell("quota", "acme", "--max-bytes", "lots").code == 2
    assert shell("quota", "acme", "--rate", "fast").code == 2
    assert shell("quota", "acme", "--max-waiting", "0").code == 2
