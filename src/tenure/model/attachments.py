"""What is stored beside a job and travels with it: its steps and signals, and the jobs that it runs after."""

from __future__ import annotations

import msgspec

from tenure.errors import InvalidArgument
from tenure.model.ids import job_id_bytes
from tenure.model.job import Job, ParentResult
from tenure.model.names import checked
from tenure.model.request import JobImage, ParentImage, StepImage, job_image
from tenure.model.step import Step, checked_signal_name, checked_step, too_many


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    """As `queue.steps` and `queue.parents` gave it. Of parents the id, the queue and the state count."""

    steps: list[Step] = []
    parents: list[ParentResult] = []


_NOTHING = Attached()


def whole_image(job: object, attached: Attached | None) -> JobImage:
    """Check a job as `get` and `list` show it, with what is attached to it. Raises InvalidArgument, TooLarge."""
    image = job_image(job)
    assert isinstance(job, Job)  # as `job_image` found
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
    """The same image, if its steps and parents are what a store takes. Raises InvalidArgument, TooLarge."""
    if image.state == "blocked" and not image.parents:
        raise InvalidArgument(f"job {image.id.hex()} is blocked: it is restored with the parents that it waits for")
    for step in image.steps:
        if step.kind not in ("step", "signal"):
            raise InvalidArgument(f"{step.kind!r}: a step is of the kind step or signal")
        checked_step(step.kind, step.name, step.value)
    if len({(step.kind, step.name) for step in image.steps}) < len(image.steps):
        raise InvalidArgument(f"job {image.id.hex()} has two steps, or two signals, of one name")
    refused = too_many(len(image.steps), sum([len(step.value) for step in image.steps]))
    if refused is not None:
        raise refused
    if image.waits_for is not None:
        checked_signal_name(image.waits_for)
    for parent in image.parents:
        if parent.queue:  # of a queue that was deleted the name is not known
            checked("queue", parent.queue)
    return image
