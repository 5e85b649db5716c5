"""The bulk verbs over HTTP: staged writes, restores, snapshots and their tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tenure.backends.remote.requests import LONG_MS, Requests, query_of
from tenure.contract.backend import JobIds, SnapshotInfos
from tenure.errors import NotFound, SnapshotExpired
from tenure.model.job import Restored
from tenure.model.names import DEFAULT_TENANT, QueueName
from tenure.model.request import JobImage, JobRequest
from tenure.model.snapshot import JournalSlice, SnapshotInfo
from tenure.model.write import LoadRequest, LoadTarget, Published, Refusal, WriteState
from tenure.protocol import messages as m
from tenure.protocol.admin_operations import write_word
from tenure.protocol.formats import ARROW
from tenure.protocol.operations import OPERATIONS

T = TypeVar("T")
_WORD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class BulkVerbs(Requests):
    # ── restores and staged writes ───────────────────────────────────────────────────────────────────────────────────

    def restore(self, name: QueueName, jobs: Sequence[JobImage]) -> Restored:
        body = m.RestoreBody([m.ImageBody.of(job) for job in jobs])
        return self._of_queue("restore", name, "/restore", body, Restored)

    def discard(self, name: QueueName, state: str, tokens: Mapping[bytes, int]) -> JobIds:
        body = m.DiscardBody(state, {job.hex(): token for job, token in tokens.items()})  # type: ignore[arg-type]
        return [bytes.fromhex(job) for job in self._of_queue("discard", name, "/discard", body, m.JobIdList).ids]

    def begin_write(self, write_id: str, manifest: bytes, keep_ms: int) -> WriteState:
        return self._write("begin_write", write_id, "", m.WriteBody(manifest, keep_ms), WriteState)

    def write_state(self, write_id: str) -> WriteState | None:
        try:
            return self._write("write_state", write_id, "", None, WriteState)
        except NotFound:
            return None

    def publish(
        self,
        write_id: str,
        chunk: int,
        name: QueueName,
        jobs: Sequence[JobRequest],
        refused: Sequence[Refusal] = (),
    ) -> Published:
        queue = name.queue if name.tenant == DEFAULT_TENANT else f"{name.tenant}/{name.queue}"
        body = m.ChunkBody(queue, m.job_bodies(jobs), list(refused))
        return self._write("publish", write_id, f"/chunks/{chunk}", body, Published)

    def finish_write(self, write_id: str, forget: str | None = None) -> WriteState:
        return self._write("finish_write", write_id, "/finish", m.FinishBody(forget), WriteState)

    def put_piece(self, write_id: str, part: str, piece: int, data: bytes) -> None:
        self._write("put_piece", write_id, f"/parts/{part}/{piece}", m.PieceBody(data), m.Done)

    def piece(self, write_id: str, part: str, piece: int) -> bytes | None:
        try:
            return self._write("piece", write_id, f"/parts/{part}/{piece}", None, m.PieceBody).data
        except NotFound:
            return None

    def drop_pieces(self, write_id: str) -> None:
        self._write("drop_pieces", write_id, "/parts", None, m.Done)

    def load_target(self, name: QueueName) -> LoadTarget:
        return self._of_queue("load_target", name, "/load-target", None, LoadTarget)

    def load(self, request: LoadRequest) -> WriteState:
        body = m.LoadBody(request.manifest, request.parts, request.keep_ms, request.chunk)
        return self._write("load", request.id, "/load", body, WriteState)

    def _write(self, verb: str, write_id: str, rest: str, body: object, answers: type[T]) -> T:
        return self._ask(OPERATIONS[verb], f"/v1/writes/{write_word(write_id)}{rest}", None, body, answers)

    # ── snapshots and tables ─────────────────────────────────────────────────────────────────────────────────────────

    def take_snapshot(self, name: str, ttl_ms: int) -> SnapshotInfo:
        body = m.TakeBody(ttl_ms, name)
        return self._ask(OPERATIONS["take_snapshot"], "/v1/snapshots", None, body, SnapshotInfo, wait_ms=LONG_MS)

    def renew_snapshot(self, id: str) -> SnapshotInfo:
        if not _WORD.fullmatch(id):
            raise SnapshotExpired(id)  # no server gives out such an id
        return self._ask(OPERATIONS["renew_snapshot"], f"/v1/snapshots/{id}/renew", None, None, SnapshotInfo)

    def drop_snapshot(self, id: str) -> bool:
        if not _WORD.fullmatch(id):
            return False
        try:
            self._ask(OPERATIONS["drop_snapshot"], f"/v1/snapshots/{id}", None, None, m.Done)
        except NotFound:
            return False
        return True

    def snapshots(self) -> SnapshotInfos:
        return self._ask(OPERATIONS["snapshots"], "/v1/snapshots", None, None, m.SnapshotList).snapshots

    def table_parts(self, snapshot: str, table: str, **which: object) -> m.PartList:
        """Split a snapshot's table into parts. Not part of the contract: for readers on other hosts."""
        path = f"/v1/snapshots/{snapshot}/{table}/parts" + query_of(**which)
        return self._ask(OPERATIONS["table_parts"], path, None, None, m.PartList, wait_ms=LONG_MS)

    def read_table(self, snapshot: str, table: str, **which: object) -> bytes:
        """Return a page of a table as an Arrow stream."""
        path = f"/v1/snapshots/{snapshot}/{table}" + query_of(**which)
        answer = self._answer(OPERATIONS["read_table"], path, None, None, wait_ms=LONG_MS)
        return answer.body if answer.content_type == ARROW else self._read(answer, bytes)

    def journal_slice(self, begin: int | None, end: int | None, max_bytes: int) -> JournalSlice:
        path = "/v1/journal" + query_of(begin=begin, end=end, max_bytes=min(max_bytes, 64 * 1024**2))
        return self._ask(OPERATIONS["journal_slice"], path, None, None, JournalSlice)
