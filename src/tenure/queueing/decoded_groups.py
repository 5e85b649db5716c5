"""What a claim reads about groups, kept for the ack: rows of groups, decoded, and the groups of jobs."""

from __future__ import annotations

from tenure.storage.records import GroupRecord, decode_group

#: Of so many groups, and so many jobs: as many as there are group names whose digests are kept.
_MOST = 20_000


class DecodedGroups:
    """Kept in memory, never stored. A row answers only for the bytes that it was decoded from, so none is ever outdated;
    a job's group never changes.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, GroupRecord]] = {}
        #: Names of groups, by job.
        self._claimed: dict[bytes, bytes] = {}

    def decoded(self, key: bytes, raw: bytes | None) -> GroupRecord | None:
        """What the row of this key says; None if there is no row. Raises Corrupt."""
        if raw is None:
            return None
        known = self._known.get(key)
        if known is not None and known[0] == raw:
            return known[1]
        record = decode_group(raw)
        self.learn(key, raw, record)
        return record

    def learn(self, key: bytes, raw: bytes, record: GroupRecord) -> None:
        """The row of this key is these bytes."""
        known = self._known
        if len(known) >= _MOST:
            known.clear()
        known[key] = raw, record

    def claimed(self, job: bytes, name: bytes) -> None:
        """A claim takes this job, of the group of this name."""
        claimed = self._claimed
        if len(claimed) >= _MOST:
            claimed.clear()
        claimed[job] = name

    def of_claimed(self, job: bytes) -> bytes | None:
        """The name of the group of a job that was claimed; None: not known. Known once: a lease ends once."""
        return self._claimed.pop(job, None)
