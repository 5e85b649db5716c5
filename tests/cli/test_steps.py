"""tenure steps, tenure signal."""

from __future__ import annotations

import tenure
from tests.cli.conftest import Shell


def test_a_job_is_signalled_and_its_steps_are_shown(shell: Shell):
    with tenure.open(shell.url) as store:
        queue = store.queue("orders")
        queue.enqueue(b"order")
        (delivery,) = queue.claim()
        queue.record_step(delivery, "charge", b"receipt \xff")
        queue.snooze(delivery, 3600, until_signal="approval")
    job = delivery.id
    told = shell("signal", "orders", job, "approval", '{"by": "ada"}')
    assert (told.code, "has the signal approval" in told.out) == (0, True)
    again = shell.json("signal", "orders", job, "approval")
    assert (again.code, again.object) == (1, {"id": job, "signal": "approval", "given": False})
    assert shell.json("get", "orders", job).object["state"] == "ready"
    first, second = shell.json("steps", "orders", job).lines
    assert (first["kind"], first["name"], first["value_encoding"]) == ("step", "charge", "base64")
    assert (second["kind"], second["name"], second["value"]) == ("signal", "approval", '{"by": "ada"}')
    assert second["stored_at_ms"] >= first["stored_at_ms"] > 0
    shown = shell("steps", "orders", job).out
    assert [word in shown for word in ("charge", "approval", "ada")] == [True] * 3


def test_what_has_no_steps_is_said(shell: Shell):
    job = shell.enqueue("orders", "a")
    assert "no steps and no signals" in shell("steps", "orders", job).out
    assert shell("steps", "order", job).code == 1
    assert shell("signal", "orders", "ab" * 16, "approval").code == 1
