"""`check(specification=True)`: replay the journal through the specification's transition relation.

It reads `events` as any consumer does, so it works on every store. Where each queue has its own journal (Redis), each
is replayed separately. It also reads events written meanwhile, up to the first page that is not full.
"""

from __future__ import annotations

from tenure.contract.backend import Backend
from tenure.model.report import Finding
from tenure.model.specification import Departure, Trace

_PAGE = 1000


def specification_findings(backend: Backend) -> list[Finding]:
    """Return, for each journal, the first event that departs from the specification."""
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
                traces[journal] = None  # events after a departure prove nothing
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
