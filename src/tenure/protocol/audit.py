"""The audit log: a line for every administrative request to a server, whether it was allowed or not.

    {"event": "audit", "action": "set_quota", "subject": "ada", "tenant": null, "target": {"tenant": "acme"},
     "outcome": "ok", "request_id": "…"}

Requests through the owner's socket are not logged: they come from the owner's own user. `outcome` is `ok` or the
error's code. Lines go to the logger `tenure.audit` at INFO, independent of the level of other lines; attach a handler
to keep them in a separate file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.telemetry import audit

if TYPE_CHECKING:
    from tenure.protocol.answer import Exchange

#: Path segments are names; longer text of a caller is cut.
_WORD = 128


def log_administration(exchange: Exchange, outcome: str) -> None:
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
