"""The limits of a request that a server sets; message types have bounds of their own.

Nesting needs no limit: a message is decoded only as deep as its type.
"""

from __future__ import annotations

from collections.abc import Sized

from msgspec import Struct

from tenure.errors import InvalidArgument
from tenure.model.job import MAX_PAYLOAD
from tenure.protocol import messages as m
from tenure.server_settings import Limits as Settings

#: Fields that hold lists.
_MANY = ("items", "jobs", "ids", "tokens", "queues")


_known: dict[type, tuple[str, ...]] = {}


def _many_of(kind: type) -> tuple[str, ...]:
    found = _known.get(kind)
    if found is None:
        found = _known[kind] = tuple(name for name in _MANY if hasattr(kind, name))
    return found


class Limits(Struct, frozen=True, kw_only=True):
    body_bytes: int = 64 * 1024**2
    #: Bytes of a compressed body after decompression.
    inflated_bytes: int = 64 * 1024**2
    head_bytes: int = 32 * 1024
    #: A longer wait is answered after this time; the client then repeats its request.
    wait_ms: int = 60_000
    batch: int = 1_000_000
    claim: int = 1_000_000
    lease_ms: int | None = None
    #: Bytes of payloads in one claim; None: as many as the caller asks for.
    answer_bytes: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        return cls(
            body_bytes=settings.body,
            inflated_bytes=settings.inflated,
            head_bytes=settings.head,
            wait_ms=round(settings.wait * 1000),
            batch=settings.batch,
            claim=settings.claim,
            lease_ms=round(settings.lease * 1000),
            answer_bytes=settings.answer,
        )

    def check(self, request: object) -> None:
        """Raise InvalidArgument if a limit is exceeded. A claim without a lower byte limit gets the server's."""
        if type(request) is list or type(request) is dict:
            self._many("the request", request)
            return
        if isinstance(request, m.ClaimBody) and request.limit > self.claim:
            raise InvalidArgument(f"limit={request.limit}: this server gives at most {self.claim} jobs to a claim")
        if isinstance(request, m.ClaimBody) and self.answer_bytes and request.limit * MAX_PAYLOAD > self.answer_bytes:
            request.max_bytes = min(request.max_bytes or self.answer_bytes, self.answer_bytes)
        lease_ms = getattr(request, "lease_ms", None)
        if lease_ms is not None and self.lease_ms is not None and lease_ms > self.lease_ms:
            raise InvalidArgument(f"lease_ms={lease_ms}: this server gives leases of at most {self.lease_ms}")
        for name in _many_of(type(request)):
            self._many(name, getattr(request, name))
        if isinstance(request, m.SettleBody) and request.alike is not None:
            self._many("alike", request.alike.tokens)

    def _many(self, name: str, things: Sized | None) -> None:
        if things is not None and len(things) > self.batch:
            raise InvalidArgument(f"{name} has {len(things)} entries, and this server takes at most {self.batch}")
