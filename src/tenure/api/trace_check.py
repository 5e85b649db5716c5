"""`check(specification=True)`: the journal, replayed through the specification's transition relation.

It reads `events` like any consumer, so it works for every store. Where each queue has a journal of its own (Redis), each is
replayed by itself. Events that are written while it reads are read too, up to the first page that is not full.
"""

from __future__ import annotations

from tenure.contract.backend import Backend
from tenure.model.report import Finding
from tenure.model.specification import Departure, Trace

_PAGE = 1000


def specification_findings(backend: Backend) -> list[Finding]:
    """Where each journal departs from the specification: its first such event."""
    traits = backend.traits
    dense = traits.order == "strict" or traits.journal == "store"
    traces: dict[tuple[str, str] | None, Trace | None] = {}
    findings: list[Finding] = []
    cursor: str | None = None
    while True:
        page = backend.events(cursor, _PAGE, 0, None)
        for event in page.events:
            journal = None if traits.journal == "store" else (event.tenant, event.queue)
            trace = traces.setdefault(journal, Trace(dense=dense, timed=traits.order == "strict"))
            why = None if trace is None else trace.take(event)
            if why is not None:
                traces[journal] = None  # what follows a departure proves nothing
                findings.append(
                    Finding(
                        rule="specification",
                        detail=str(Departure(event, why)),
                        tenant=event.tenant,
                        queue=event.queue,
                        job_id=event.job_id,
                    )
                )
        if len(page.events) < _PAGE:
            return findings
        cursor = page.cursor
