"""A queue's policy, and the decision when a failed job is retried. Callers store the decision."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Literal

import msgspec

from tenure.errors import InvalidArgument
from tenure.model.durations import MAX_MS, Duration, duration_ms
from tenure.model.group import UNLIMITED, GroupPolicy
from tenure.model.names import checked
from tenure.model.rate import Rate

Jitter = Literal["none", "equal", "full"]
MAX_ATTEMPTS = 1_000_000
#: How the error of a job begins that died because its lease expired: the journal tells it from a failed job by this.
LEASE_EXPIRED = "the lease expired"


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a job waits after its n-th failed delivery. Make one by `fixed`, `linear`, `exponential`, `patient`."""

    kind: Literal["fixed", "linear", "exponential"] = "exponential"
    base: float = 5.0
    factor: float = 2.0
    cap: float = 900.0
    jitter: Jitter = "full"

    @classmethod
    def fixed(cls, seconds: Duration, *, jitter: Jitter = "none") -> Backoff:
        return cls("fixed", _seconds(seconds), 1.0, _seconds(seconds), jitter).checked()

    @classmethod
    def linear(cls, base: Duration, *, cap: Duration = 900, jitter: Jitter = "none") -> Backoff:
        return cls("linear", _seconds(base), 1.0, _seconds(cap), jitter).checked()

    @classmethod
    def exponential(
        cls, base: Duration = 5, factor: float = 2, cap: Duration = 900, jitter: Jitter = "full"
    ) -> Backoff:
        return cls("exponential", _seconds(base), float(factor), _seconds(cap), jitter).checked()

    @classmethod
    def patient(cls) -> Backoff:
        """1, 5, then 25 minutes: for failures that people have to fix."""
        return cls("exponential", 60.0, 5.0, 1500.0, "none")

    def checked(self) -> Backoff:
        for name in ("base", "cap"):
            duration_ms(f"backoff {name}", getattr(self, name))
        if not 1 <= self.factor <= 1000:  # also refuses NaN
            raise InvalidArgument(f"backoff factor={self.factor!r} must be 1 to 1000")
        if self.kind not in ("fixed", "linear", "exponential"):
            raise InvalidArgument(f"backoff kind={self.kind!r}: fixed, linear or exponential")
        if self.jitter not in ("none", "equal", "full"):
            raise InvalidArgument(f"backoff jitter={self.jitter!r}: none, equal or full")
        return self

    def delay_ms(self, attempt: int, roll: float) -> int:
        """The wait after failed delivery number `attempt` (from 1); `roll` in [0, 1) decides the jitter."""
        if self.kind == "fixed":
            seconds = self.base
        elif self.kind == "linear":
            seconds = self.base * attempt
        else:
            try:
                seconds = self.base * self.factor ** (attempt - 1)
            except OverflowError:
                seconds = self.cap if self.base else 0.0
        seconds = min(seconds, self.cap)
        if self.jitter == "equal":
            seconds = seconds / 2 + seconds / 2 * roll
        elif self.jitter == "full":
            seconds *= roll
        return min(math.ceil(round(seconds * 1000, 6)), MAX_MS)  # rounded first: else 16.1 s give 16,101 ms


#: How many groups one policy may name: the policy is one stored row, which every process that uses the queue reads.
MAX_NAMED_GROUPS = 1_000


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A queue's settings, and the defaults of its jobs. Times in seconds."""

    max_attempts: int = 5
    lease: float = 30.0
    backoff: Backoff = Backoff()
    #: Apply the backoff also when a lease expires; otherwise the job is ready at once.
    backoff_on_expiry: bool = False
    #: How long done jobs are kept (0: not at all), and done jobs with a result.
    retention: float = 0.0
    result_retention: float = 86_400.0
    #: The minimum time for which an idempotency key is held.
    dedup_window: float = 86_400.0
    #: Enqueues beyond this many waiting jobs are refused (None: no limit).
    max_waiting: int | None = None
    #: At most this many jobs are leased at a time, over all workers; and the rate at which jobs are claimed.
    max_leased: int | None = None
    rate: Rate | str | None = None
    #: The policy of each group, and exceptions by group name.
    group: GroupPolicy | None = None
    groups: dict[str, GroupPolicy] = {}

    def __post_init__(self) -> None:
        # A duration may be a timedelta; it is stored as seconds.
        for name in ("lease", "retention", "result_retention", "dedup_window"):
            value = getattr(self, name)
            if isinstance(value, timedelta):
                msgspec.structs.force_setattr(self, name, value.total_seconds())
        if isinstance(self.rate, str):
            msgspec.structs.force_setattr(self, "rate", Rate.parse(self.rate))

    def checked(self) -> Policy:
        whole_number("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        duration_ms("lease", self.lease, minimum_ms=1)
        for name in ("retention", "result_retention", "dedup_window"):
            duration_ms(name, getattr(self, name))
        for name in ("max_waiting", "max_leased"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1, 2**53)
        if self.rate is not None:
            if not isinstance(self.rate, Rate):
                raise InvalidArgument(f"rate={self.rate!r} is not a Rate, nor text such as 100/s")
            self.rate.checked()
        self._check_groups()
        if not isinstance(self.backoff, Backoff):
            raise InvalidArgument(f"backoff={self.backoff!r} is not a Backoff")
        if not isinstance(self.backoff_on_expiry, bool):
            raise InvalidArgument(f"backoff_on_expiry={self.backoff_on_expiry!r} is not a bool")
        self.backoff.checked()
        return self

    def _check_groups(self) -> None:
        if not isinstance(self.groups, dict):
            raise InvalidArgument(f"groups={self.groups!r} is not a dictionary of group policies")
        if len(self.groups) > MAX_NAMED_GROUPS:
            raise InvalidArgument(
                f"groups names {len(self.groups):,} groups, and at most {MAX_NAMED_GROUPS:,} are taken"
            )
        for name in self.groups:
            checked("group", name)
        for policy in (self.group, *self.groups.values()):
            if policy is not None and not isinstance(policy, GroupPolicy):
                raise InvalidArgument(f"{policy!r} is not a GroupPolicy")
            if policy is not None:
                policy.checked()

    def of_group(self, name: str) -> GroupPolicy:
        """The policy of the group of that name."""
        return self.groups.get(name) or self.group or UNLIMITED


class Verdict(msgspec.Struct, frozen=True):
    """The decision on a job whose delivery failed: retry at a time, or dead (None)."""

    retry_at_ms: int | None


def after_failure(
    policy: Policy, attempt: int, max_attempts: int, now_ms: int, delay_ms: int | None, roll: float
) -> Verdict:
    """Decide after a nack. `delay_ms` overrides the backoff; a job without attempts left is dead in any case."""
    if attempt >= max_attempts:
        return Verdict(None)
    return Verdict(now_ms + (policy.backoff.delay_ms(attempt, roll) if delay_ms is None else delay_ms))


def after_expiry(policy: Policy, attempt: int, max_attempts: int, now_ms: int, roll: float) -> Verdict:
    """Decide after a lease expired. The delivery failed; without `backoff_on_expiry` the job is ready at once."""
    return after_failure(policy, attempt, max_attempts, now_ms, None if policy.backoff_on_expiry else 0, roll)


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """Return the value if it is an integer from `low` to `high`. Raises InvalidArgument, which quotes `name`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgument(f"{name}={value!r} must be a whole number from {low} to {high}")
    return value


def _seconds(value: Duration) -> float:
    return duration_ms("backoff", value) / 1000
