"""Rows stored beside a job that move with it to another store: its steps, its signals and its parents."""

from __future__ import annotations

import msgspec

from tenure.errors import InvalidArgument
from tenure.model.ids import job_id_bytes
from tenure.model.job import Job, ParentResult
from tenure.model.names import checked
from tenure.model.request import JobImage, ParentImage, StepImage, job_image
from tenure.model.step import Step, checked_signal_name, checked_step, steps_limit_error


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    """A job's steps (from `queue.steps`) and parents (from `queue.parents`; only id, queue and state are used)."""

    steps: list[Step] = []
    parents: list[ParentResult] = []


_NOTHING = Attached()


def image_with_attachments(job: object, attached: Attached | None) -> JobImage:
    """Check a `Job`, as `get` and `list` return it, with its steps and parents. Raises InvalidArgument, TooLarge."""
    image = job_image(job)
    assert isinstance(job, Job)  # `job_image` raises otherwise
    found = attached or _NOTHING
    steps = tuple(StepImage(step.name, step.kind, step.value, step.stored_at_ms) for step in found.steps)
    parents = tuple(
        ParentImage(parent.queue, job_id_bytes(parent.id), parent.state in ("done", "gone")) for parent in found.parents
    )
    policy = job.on_parent_dead or "cancel"
    waits_for = job.waits_for if image.state == "waiting" and job.state != "leased" else None
    if not steps and not parents and waits_for is None and image.state != "blocked":
        return image
    if policy not in ("cancel", "run", "wait"):
        raise InvalidArgument(f"on_parent_dead={policy!r}: cancel, run or wait")
    return checked_attached(image._replace(steps=steps, parents=parents, on_parent_dead=policy, waits_for=waits_for))


def checked_attached(image: JobImage) -> JobImage:
    """Return the image unchanged if its steps and parents are valid. Raises InvalidArgument, TooLarge."""
    if image.state == "blocked" and not image.parents:
        raise InvalidArgument(f"job {image.id.hex()} is blocked: it is restored with the parents that it waits for")
    for step in image.steps:
        if step.kind not in ("step", "signal"):
            raise InvalidArgument(f"{step.kind!r}: a step is of the kind step or signal")
        checked_step(step.kind, step.name, step.value)
    if len({(step.kind, step.name) for step in image.steps}) < len(image.steps):
        raise InvalidArgument(f"job {image.id.hex()} has two steps, or two signals, of one name")
    refused = steps_limit_error(len(image.steps), sum([len(step.value) for step in image.steps]))
    if refused is not None:
        raise refused
    if image.waits_for is not None:
        checked_signal_name(image.waits_for)
    for parent in image.parents:
        if parent.queue:  # empty if the parent's queue was deleted
            checked("queue", parent.queue)
    return image
