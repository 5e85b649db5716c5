"""The rows of groups that were read or written last, decoded: a claim's group is asked for again by the ack."""

from __future__ import annotations

from tenure.storage.records import GroupRecord, decode_group

#: Of so many groups: as many as there are group names whose digests are kept.
_MOST = 20_000


class DecodedGroups:
    """Kept in memory, never stored. Each answers only for the bytes that it was decoded from, so none is ever outdated."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[bytes, GroupRecord]] = {}

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
