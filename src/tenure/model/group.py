"""Groups inside a queue: what the queue's policy grants each group, and what `queue.groups()` shows."""

from __future__ import annotations

import msgspec

from tenure.errors import InvalidArgument
from tenure.model.rate import Rate

#: The allowed range of a group's weight.
_LEAST_WEIGHT, _MOST_WEIGHT = 0.001, 1000.0


class GroupPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The limits and the weight of one group. Jobs without a group have no such limits."""

    #: At most this many jobs of the group are leased at a time; and the rate at which its jobs are claimed.
    max_leased: int | None = None
    rate: Rate | str | None = None
    #: Its share of the claims while several groups have work: weight 2 gets twice as many jobs as weight 1.
    weight: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.rate, str):
            msgspec.structs.force_setattr(self, "rate", Rate.parse(self.rate))

    def checked(self) -> GroupPolicy:
        """Return the policy itself. Raises InvalidArgument if a field is not valid."""
        limit: object = self.max_leased
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 2**53):
            raise InvalidArgument(f"max_leased={limit!r} of a group must be a whole number from 1 to {2**53}")
        if self.rate is not None:
            if not isinstance(self.rate, Rate):
                raise InvalidArgument(f"rate={self.rate!r} of a group is not a Rate, nor text such as 100/s")
            self.rate.checked()
        weight: object = self.weight
        if (
            isinstance(weight, bool)
            or not isinstance(weight, (int, float))
            or not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT
        ):
            raise InvalidArgument(f"weight={weight!r} of a group must be from {_LEAST_WEIGHT:g} to {_MOST_WEIGHT:g}")
        return self

    @property
    def limited(self) -> bool:
        return self.max_leased is not None or self.rate is not None


#: The policy of a group that the queue's policy does not mention.
UNLIMITED = GroupPolicy()


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `queue.groups()`: a group with a waiting or leased job."""

    group: str
    #: Ready and scheduled jobs together.
    waiting: int
    leased: int
    #: When its oldest ready job became ready; None: none is ready.
    oldest_at_ms: int | None = None
    #: It has as many leased jobs as it may: claims skip it until one of them is settled.
    at_limit: bool = False


class GroupPage(msgspec.Struct, frozen=True):
    """A page of groups. Pass `cursor` to the next call; None means this was the last page."""

    groups: list[GroupInfo]
    cursor: str | None

    def __iter__(self):  # type: ignore[no-untyped-def]  # an iterator of GroupInfo; msgspec refuses the generic here
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)
