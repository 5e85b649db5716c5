"""claim, and settling by receipt from another process: here, another run."""

from __future__ import annotations

import time

from tests.cli.conftest import Shell

UNKNOWN = "0" * 31 + "1." + "0" * 31 + "2.1"


def test_claim_shows_receipts_and_ack_takes_them(shell: Shell):
    job = shell.enqueue("emails", "hello", "--priority", "5", "--header", "trace=1")
    ran = shell("claim", "emails", "--lease", "60", "--worker", "me")
    assert ran.code == 0
    assert "claimed 1 job of emails" in ran.out
    assert "hello" in ran.out
    assert "trace=1" in ran.out
    receipt = next(line.split()[1] for line in ran.out.splitlines() if line.startswith("receipt"))
    assert receipt.startswith(job)
    acked = shell("ack", "emails", receipt)
    assert (acked.code, acked.out) == (0, f"acked {job}\n")
    assert shell.json("counts", "emails").object["removed"] == 1


def test_claim_for_programs(shell: Shell):
    for n in range(3):
        shell.enqueue("emails", f"{n}")
    ran = shell.json("claim", "emails", "--limit", "2", "--lease", "60")
    assert [line["payload"] for line in ran.lines] == ["0", "1"]
    first = ran.lines[0]
    assert set(first) == {
        "id", "tenant", "queue", "receipt", "payload", "payload_encoding", "headers", "key", "group", "priority", "attempt",
        "max_attempts", "token", "created_at_ms", "created_at", "lease_id", "lease_until_ms", "lease_until",
    }  # fmt: skip
    assert first["lease_until"].endswith("Z")
    assert shell.json("release", "emails", *(line["receipt"] for line in ran.lines)).lines == [
        {"id": line["id"], "settled": True, "error": None} for line in ran.lines
    ]
    assert shell.json("claim", "emails", "--limit", "9").lines[0]["attempt"] == 1  # a release is not counted


def test_an_empty_claim_is_a_no(shell: Shell):
    shell("pause", "emails")
    shell.enqueue("emails", "x")
    ran = shell("claim", "emails")
    assert (ran.code, ran.out) == (1, "nothing to claim in emails\n")
    assert (shell.json("claim", "emails").code, shell.json("claim", "emails").out) == (1, "")
    shell("resume", "emails")
    assert shell("claim", "emails").code == 0


def test_claim_from_several_and_waiting(shell: Shell):
    job = shell.enqueue("later", "x", "--delay", "300ms")
    began = time.monotonic()
    ran = shell.json("claim", "sooner", "later", "--wait", "60")
    assert ran.object["id"] == job
    assert time.monotonic() - began < 40


def test_a_repeated_claim_gives_the_same_job(shell: Shell):
    shell.enqueue("emails", "a")
    shell.enqueue("emails", "b")
    assert shell.claim("emails", "--id", "mine") == shell.claim("emails", "--id", "mine")
    assert shell("claim", "emails", "other", "--id", "mine").code == 2


def test_a_stale_receipt_is_refused(shell: Shell):
    shell.enqueue("emails", "x")
    receipt = shell.claim("emails", "--lease", "50ms")
    time.sleep(0.1)
    for verb in (("ack",), ("nack",), ("fail",), ("release",), ("extend",)):
        ran = shell(*verb, "emails", receipt)
        assert ran.code == 3, verb
        assert "claim again" in ran.err
        assert shell.json(*verb, "emails", receipt).err.startswith('{"error": "lease_lost"')


def test_settling_twice_says_so(shell: Shell):
    shell("configure", "emails", "--retention", "1h")
    shell.enqueue("emails", "x")
    receipt = shell.claim("emails")
    assert shell("ack", "emails", receipt).code == 0
    ran = shell("ack", "emails", receipt)
    assert ran.code == 3
    assert "Nothing to do" in ran.err
    assert shell.json("ack", "emails", receipt).err.startswith('{"error": "already_settled"')


def test_some_of_several_are_lost(shell: Shell):
    job = shell.enqueue("emails", "x")
    receipt = shell.claim("emails")
    ran = shell("ack", "emails", UNKNOWN, receipt)
    assert ran.code == 3
    assert ran.out == f"acked {job}\n"
    assert "its lease has ended" in ran.err or "job" in ran.err
    ran = shell.json("ack", "emails", UNKNOWN, receipt)
    assert ran.code == 3
    assert [line["settled"] for line in ran.lines] == [False, False]


def test_receipts_from_stdin(shell: Shell):
    for n in range(3):
        shell.enqueue("emails", f"{n}")
    receipts = [line["receipt"] for line in shell.json("claim", "emails", "-n", "3").lines]
    ran = shell("ack", "emails", "-", stdin="\n".join(receipts) + "\n\n")
    assert ran.code == 0
    assert ran.out.count("acked") == 3


def test_a_job_id_is_no_receipt_and_settles_nothing(shell: Shell):
    job = shell.enqueue("emails", "x")
    receipt = shell.claim("emails")
    ran = shell("ack", "emails", receipt, job)
    assert ran.code == 2
    assert "not a receipt" in ran.err
    assert shell.json("get", "emails", job).object["state"] == "leased"


def test_nack_fail_and_results(shell: Shell):
    shell("configure", "emails", "--max-attempts", "2")
    job = shell.enqueue("emails", "x")
    assert shell("nack", "emails", shell.claim("emails"), "--error", "boom", "--delay", "0").code == 0
    found = shell.json("get", "emails", job).object
    assert (found["state"], found["error"], found["attempt"]) == ("ready", "boom", 1)
    assert shell("nack", "emails", shell.claim("emails"), "--error", "boom again").code == 0
    found = shell.json("get", "emails", job).object
    assert (found["state"], found["reason"]) == ("dead", "max_attempts")

    job = shell.enqueue("emails", "y")
    assert shell("ack", "emails", shell.claim("emails"), "--result", "42").code == 0
    assert shell("get", "emails", job, "--result").raw == b"42"
    assert shell.json("get", "emails", job, "--wait", "1").object["state"] == "done"


def test_extend_and_progress(shell: Shell):
    job = shell.enqueue("emails", "x")
    receipt = shell.claim("emails", "--lease", "60")
    before = shell.json("get", "emails", job).object["lease_until_ms"]
    extended = shell.json("extend", "emails", receipt, "--lease", "10m").object
    assert extended["lease_until_ms"] > before + 500_000
    assert extended["lost"] == []
    assert "in 10 min" in shell("extend", "emails", receipt, "--lease", "10m").out
    assert shell("progress", "emails", receipt, "0.4", "resizing").code == 0
    assert "40% resizing" in shell("get", "emails", job).out
    assert shell("progress", "emails", receipt, "2").code == 2
    assert shell("cancel", "emails", job).code == 0
    assert shell("ack", "emails", receipt).code == 3
