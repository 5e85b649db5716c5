"""Fencing tokens: one integer a job, larger with every delivery, never given twice.

The lower 32 bits count the job's deliveries. The upper ones are the store's epoch, which is raised, and on disk, before
the process that opens the store claims anything. So a token is not given again even if a power cut took the claim that
gave it: the store's next owner is of a later epoch.
"""

from __future__ import annotations

_COUNT_BITS = 32
TOKEN_COUNT = (1 << _COUNT_BITS) - 1


def first_token(epoch: int) -> int:
    """No token of this epoch is smaller."""
    return epoch << _COUNT_BITS


def next_token(before: int, first: int) -> int:
    """The token of a job's next delivery, after the token `before`, in the epoch that begins with `first`.

    A job that came from a store of later epochs keeps its own: tokens only grow.
    """
    return (before if before >= first else first | before & TOKEN_COUNT) + 1
