"""The audit log: a line for every act of administration that came through a server, whether it was allowed or not.

    {"event": "audit", "action": "set_quota", "subject": "ada", "tenant": null, "target": {"tenant": "acme"},
     "outcome": "ok", "request_id": "…"}

Callers of the owner's socket are the owner's own processes, and not in it. `outcome` is `ok`, or the error's code.
Lines go to the logger `tenure.audit` at INFO, which is on whatever the level of the other lines is; give it a handler
of its own to keep them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.telemetry import audit

if TYPE_CHECKING:
    from tenure.protocol.answer import Exchange

#: Words of a path are names; a caller's longer text is cut.
_WORD = 128


def log_act(exchange: Exchange, outcome: str) -> None:
    identity, operation, head = exchange.identity, exchange.operation, exchange.head
    assert operation is not None
    audit(
        "audit",
        action=operation.name,
        subject=None if identity is None else identity.subject,
        tenant=None if identity is None else head.tenant if head is not None else identity.tenant,
        target={name: word[:_WORD] for name, word in (exchange.words or {}).items()},
        outcome=outcome,
        request_id=exchange.request_id,
    )
