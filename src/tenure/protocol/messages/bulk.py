"""Messages for many jobs or rows: restores, staged writes, snapshots and their tables."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tenure.errors import InvalidArgument
from tenure.model.attachments import checked_attached
from tenure.model.ids import job_id_bytes
from tenure.model.job import MAX_ERROR_CHARS, OnParentDead
from tenure.model.names import MAX_KEY_BYTES, checked, short_text
from tenure.model.request import JobImage, ParentImage, StepImage, checked_bytes, checked_headers
from tenure.model.retry import MAX_ATTEMPTS
from tenure.model.snapshot import SnapshotInfo
from tenure.model.step import MAX_STEPS
from tenure.model.write import CHUNK, MAX_KEEP_MS, LoadPart, Refusal
from tenure.protocol.messages.base import Number, PositiveMs, Request, Small, checked_text
from tenure.protocol.messages.jobs import Jobs


class StepBody(Request, array_like=True):
    """A step or a signal of a job (`model.request.StepImage`)."""

    name: str
    kind: Literal["step", "signal"]
    value: bytes
    stored_at_ms: Number


class ParentBody(Request, array_like=True):
    """A parent of a job (`model.request.ParentImage`)."""

    queue: str
    id: str
    ended: bool = False


class ImageBody(Request, kw_only=True):
    """A job to restore (`model.request.JobImage`)."""

    id: str
    state: Literal["blocked", "waiting", "done", "dead"]
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)
    key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 0
    attempt: Small = 0
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)]
    token: Number = 0
    replays: Small = 0
    created_at_ms: Number
    visible_at_ms: Number
    ended_at_ms: Number = 0
    reason: Literal["max_attempts", "failed"] | None = None
    error: Annotated[str, Meta(max_length=MAX_ERROR_CHARS)] | None = None
    result: bytes | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    progress_note: Annotated[str, Meta(max_length=MAX_ERROR_CHARS)] | None = None
    due_at_ms: Number = 0
    group: str | None = None
    steps: Annotated[list[StepBody], Meta(max_length=MAX_STEPS)] = field(default_factory=list)
    parents: list[ParentBody] = field(default_factory=list)
    on_parent_dead: OnParentDead = "cancel"
    waits_for: str | None = None

    def checked(self) -> JobImage:
        if self.state == "dead" and self.reason is None:
            raise InvalidArgument(f"job {self.id} is dead: say of what (reason: max_attempts or failed)")
        if self.result is not None:
            checked_bytes("result", self.result)
        for what in ("error", "progress_note"):
            checked_text(what, getattr(self, what))
        checked_bytes("payload", self.payload)
        if self.headers:
            checked_headers(self.headers)
        if self.group is not None:
            checked("group", self.group)
        if self.key is not None:
            short_text("key", self.key, MAX_KEY_BYTES)
        image = JobImage(job_id_bytes(self.id), *[getattr(self, name) for name in JobImage._fields[1:]])
        steps = tuple(StepImage(step.name, step.kind, step.value, step.stored_at_ms) for step in self.steps)
        parents = tuple(ParentImage(parent.queue, job_id_bytes(parent.id), parent.ended) for parent in self.parents)
        return checked_attached(image._replace(steps=steps, parents=parents))

    @classmethod
    def of(cls, image: JobImage) -> ImageBody:
        steps = [StepBody(*step) for step in image.steps]
        parents = [ParentBody(parent.queue, parent.job.hex(), parent.ended) for parent in image.parents]
        return cls(**image._asdict() | {"id": image.id.hex(), "steps": steps, "parents": parents})


class RestoreBody(Request):
    jobs: Annotated[list[ImageBody], Meta(max_length=10_000)]


class DiscardBody(Request):
    """Jobs by id, each with the token that it must still have."""

    state: Literal["done", "dead"]
    tokens: Annotated[dict[str, Number], Meta(max_length=100_000)]


class JobIdList(Struct, frozen=True):
    ids: list[str]


Keep = Annotated[int, Meta(ge=0, le=MAX_KEEP_MS)]


class WriteBody(Request):
    manifest: bytes
    keep_ms: Keep


class ChunkBody(Request):
    queue: str
    jobs: Annotated[Jobs, Meta(max_length=CHUNK)]
    #: Jobs of the chunk that are not added, and why; stored with the chunk.
    refused: Annotated[list[Refusal], Meta(max_length=CHUNK)] = field(default_factory=list)


class FinishBody(Request):
    forget: str | None = None


class PieceBody(Request):
    data: bytes


class LoadBody(Request):
    manifest: bytes
    parts: list[LoadPart]
    keep_ms: Keep
    chunk: int | None = None


class TakeBody(Request):
    ttl_ms: PositiveMs
    name: str = "snapshot"


class SnapshotList(Struct, frozen=True):
    snapshots: list[SnapshotInfo]


class SliceQuery(Request):
    begin: Number | None = None
    end: Number | None = None
    max_bytes: Annotated[int, Meta(ge=0, le=64 * 1024**2)] = 4 * 1024**2


class TableQuery(Request):
    """A selection of rows and columns of a table: names separated by commas, times in milliseconds."""

    columns: str = ""
    tenant: str | None = None
    queue: str | None = None
    state: str = ""
    since_ms: Number | None = None
    until_ms: Number | None = None


class PartsQuery(TableQuery):
    """Split the table into parts of about so many rows; for `events`, optionally between two commits."""

    rows: Annotated[int, Meta(ge=1)] = 200_000
    first_commit: Number | None = None
    end_commit: Number | None = None


class PageQuery(TableQuery):
    """The key range of a part, in hex; for the next page, it starts where the last one says."""

    space: Number = 0
    begin: str = ""
    end: str = ""


class PartList(Struct, frozen=True):
    """For each part its keyspace and its key ranges, in hex."""

    parts: list[tuple[int, list[tuple[str, str]]]]


class Stream(Struct, frozen=True):
    """An Arrow stream, sent as it is instead of a message."""

    body: bytes
