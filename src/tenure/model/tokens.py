"""Fencing tokens: an integer for each delivery of a job, larger than all before it, never reused.

The lower 32 bits count the job's deliveries. The upper bits are the store's epoch. A process that opens the store
raises the epoch and syncs it before its first claim. So no token is reused even if a power loss erased the claim that
gave it: the next owner of the store has a later epoch.
"""

from __future__ import annotations

_COUNT_BITS = 32
TOKEN_COUNT = (1 << _COUNT_BITS) - 1


def first_token(epoch: int) -> int:
    """The lower bound of this epoch's tokens."""
    return epoch << _COUNT_BITS


def next_token(before: int, first: int) -> int:
    """The token of a job's next delivery, given its last token `before` and the epoch's lower bound `first`.

    A job restored from a store with a later epoch keeps that epoch: tokens only grow.
    """
    return (before if before >= first else first | before & TOKEN_COUNT) + 1
