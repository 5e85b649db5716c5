"""Quotas of tenants that share a store."""

from __future__ import annotations

import msgspec

from tenure.errors import InvalidArgument
from tenure.model.rate import Rate
from tenure.model.retry import whole_number


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits over all queues of a tenant; None: no limit. Rates may be given as text: "100/s"."""

    #: Waiting jobs; and stored bytes: payloads of jobs in every state, results, staged writes. A verb that adds more is
    #: refused. Jobs that return after a failure or an expired lease are never refused.
    max_waiting: int | None = None
    max_bytes: int | None = None
    #: The rate of enqueued jobs.
    rate: Rate | str | None = None
    #: The rate of requests of any kind to a server.
    requests: Rate | str | None = None

    def __post_init__(self) -> None:
        for name in ("rate", "requests"):
            value = getattr(self, name)
            if isinstance(value, str):
                msgspec.structs.force_setattr(self, name, Rate.parse(value))

    def checked(self) -> Quota:
        for name in ("max_waiting", "max_bytes"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1, 2**53)
        for name in ("rate", "requests"):
            value: object = getattr(self, name)
            if value is not None:
                if not isinstance(value, Rate):
                    raise InvalidArgument(f"{name}={value!r} is not a Rate, nor text such as 100/s")
                value.checked()
        return self

    @property
    def empty(self) -> bool:
        return self == _NONE

    def rate_of(self, name: str) -> Rate | None:
        rate = getattr(self, name)
        return rate if isinstance(rate, Rate) else None


_NONE = Quota()


class QuotaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's quota, the jobs it has waiting, and the bytes it has stored."""

    tenant: str
    quota: Quota
    waiting: int
    bytes: int
