"""The report of `check`."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One violated invariant."""

    #: index, due, lease, empty_lease, counters, conservation, journal, damaged, orphan or specification
    rule: str
    detail: str
    tenant: str | None = None
    queue: str | None = None
    job_id: str | None = None
    #: The repair that was made; None: none was made, or none is possible.
    repair: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check. `ok`: nothing was found, or all that was found has been repaired."""

    findings: list[Finding]
    jobs: int
    events: int
    leases: int
    queues: int
    #: There are more findings than the list holds.
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return all(finding.repair is not None for finding in self.findings)

    @property
    def clean(self) -> bool:
        return not self.findings
