"""me: the caller and what its scopes allow."""

from __future__ import annotations

from msgspec import Struct

from tenure.server.dashboard.views.viewer import NoQuery, Viewer
from tenure.version import __version__


class Me(Struct):
    subject: str
    tenant: str
    operator: bool
    may_mend: bool
    may_produce: bool
    signed_in: bool
    version: str
    now_ms: int


def show(viewer: Viewer, query: NoQuery) -> Me:
    identity = viewer.identity
    return Me(
        subject=identity.subject,
        tenant=identity.tenant,
        operator=identity.operator,
        may_mend=identity.may("admin"),
        may_produce=identity.may("produce"),
        signed_in=viewer.signed_in,
        version=__version__,
        now_ms=viewer.backend.now_ms(),
    )
