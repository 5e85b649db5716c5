"""Handles on flows of tasks: wait for the result, read the steps' states, cancel, retry dead steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from tenure.api.flow import flow_leading_to
from tenure.errors import NotFound, TaskFailed, WaitTimeout
from tenure.model.durations import Duration, duration_ms
from tenure.model.job import Job, ParentResult
from tenure.worker import execution
from tenure.worker.codec import open_envelope
from tenure.worker.context import CurrentJob
from tenure.worker.handles import Handle, InlineHandle, wait_in_slices
from tenure.worker.parent_results import fill

if TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.flows import Flow, Node
    from tenure.worker.outcomes import Outcome

R = TypeVar("R")
FlowState = Literal["running", "done", "failed"]
#: Seconds after which `result` checks whether the flow is stuck: at first, and at most.
_FIRST_CHECK_S, _MAX_CHECK_S = 0.25, 8.0
#: States of jobs that continue by themselves.
_CONTINUING = frozenset(("scheduled", "ready", "leased"))


class FlowHandle(Generic[R]):
    """The jobs of a flow. `steps` are handles on all of them, in the order in which they were added."""

    def __init__(self, app: App, steps: Sequence[Handle[Any]], ends: Sequence[int], *, many: bool = False) -> None:
        self._app = app
        self.steps = steps
        self._ends = [steps[place] for place in ends]
        self._many = many

    @property
    def id(self) -> str:
        """The id of the last job, by which `tenure flow show` and `app.flow` find the flow. Empty, if it has none."""
        return self._ends[-1].id if self._ends else ""

    def result(self, timeout: Duration = 10) -> R:
        """Wait for the flow and return what the last step returned; for a group, the list of its members' results.

        Raises TaskFailed, for the dead step, once nothing of the flow can continue without a replay; WaitTimeout if the
        flow has not ended in time.
        """
        total = left = duration_ms("timeout", timeout) / 1000
        interval = _FIRST_CHECK_S
        while True:
            piece = min(left, interval)
            try:
                results = [end.result(piece) for end in self._ends]
                return results if self._many else results[0]  # type: ignore[return-value]  # R is a list then
            except WaitTimeout:
                left -= piece
                self._raise_if_stuck()
                if left <= 0:
                    raise WaitTimeout(self.id, total) from None
                interval = min(2 * interval, _MAX_CHECK_S)
            except TaskFailed as exc:
                self._raise_if_stuck()
                raise exc from None

    def status(self) -> FlowState:
        """Return running, done, or failed: a step is dead or was removed, and no step continues by itself."""
        states = [end.status() for end in self._ends]
        if all(state == "done" for state in states):
            return "done"
        if any(state in ("dead", "removed", "unknown") for state in states) or self._dead_step_if_stuck() is not None:
            return "failed"
        return "running"

    def counts(self) -> dict[str, int]:
        """Return how many of its jobs are in each state. Reads every job: through a server, one request each."""
        return dict(Counter(step.status() for step in self.steps))

    def cancel(self) -> int:
        """Cancel the jobs that have not ended. Returns how many."""
        # The last ones first: cancelling a job also removes the jobs that wait for it.
        return sum(step.cancel() for step in reversed(self.steps))

    def retry(self) -> int:
        """Replay the dead steps, from which the flow continues. Returns how many."""
        dead = [(step, job) for step in self.steps if (job := step.job()) is not None and job.state == "dead"]
        return sum(step.queue.replay([job.id]).count for step, job in dead)

    @property
    def aio(self) -> AsyncFlowHandle[R]:
        """The same verbs, awaited."""
        return AsyncFlowHandle(self)

    @property
    def app(self) -> App:
        return self._app

    def _raise_if_stuck(self) -> None:
        found = self._dead_step_if_stuck()
        if found is not None:
            step, job = found
            raise TaskFailed(job.id, step.task.name, job.reason or "failed", job.error) from None

    def _dead_step_if_stuck(self) -> tuple[Handle[Any], Job] | None:
        """Return the first dead step if no other step is running or will run; None if the flow continues."""
        queues = {str(step.queue.name): step.queue for step in self.steps}
        if not any(queue.counts().dead for queue in queues.values()):
            return None
        dead = None
        for step in self.steps:
            job = step.job()
            if job is None:
                continue
            if job.state in _CONTINUING:
                return None
            if job.state == "dead" and dead is None:
                dead = step, job
        return dead

    def __repr__(self) -> str:
        return f"<FlowHandle {self.id} of {len(self.steps)} jobs>"


def flow_handle(app: App, job_id: str) -> FlowHandle[Any]:
    """Return a handle on the flow that leads to a job. Raises NotFound; InvalidArgument for a job of no task."""
    found, _ = flow_leading_to(app.store, job_id)
    steps: list[Handle[Any]] = []
    for one in found.values():
        if one.job is None:
            continue  # done and removed, or cancelled: there is nothing to wait for, cancel or replay
        task = app.find(open_envelope(one.job.payload).task)
        steps.append(Handle(task, app.store.queue(one.queue, one.tenant), one.id))
    if not steps or steps[0].id != job_id:
        raise NotFound(f"there is no job {job_id}")
    return FlowHandle(app, steps, [0])


class InlineFlowHandle(FlowHandle[Any]):
    """A flow of an app in inline mode: run in the caller's thread, step by step, through the same encoding."""

    def __init__(self, flow: Flow) -> None:
        self._outcomes: list[Outcome | None] = []
        handles: list[Handle[Any]] = []
        for node in flow.nodes:
            outcome = self._run(node)
            self._outcomes.append(outcome)
            handles.append(InlineHandle(node.call.task, outcome))
        super().__init__(flow.app, handles, [node.place for node in flow.ends.nodes], many=flow.ends.many)

    def _run(self, node: Node) -> Outcome | None:
        """Run a step. None: an earlier step failed, so it does not run."""
        task = node.call.task
        given = {name: value for name, value in node.call.given.items() if name not in node.fillings}
        payload = task.codec.encode_step(given, node.fillings)
        parents = [self._outcomes[parent.place] for parent in node.parents]
        if node.on_parent_dead != "run" and any(parent is None or parent.verb != "ack" for parent in parents):
            return None
        results = [
            ParentResult(id="", queue="", state="done", result=None if parent is None else parent.result)
            for parent in parents
        ]
        if node.fillings:
            payload = fill(payload, open_envelope(payload), results)
        return execution.run(task.app, CurrentJob(task.name, queue=task.queue), payload)

    def result(self, timeout: Duration = 10) -> Any:
        if self.status() == "failed":
            for step in self.steps:
                if step.status() == "dead":
                    step.result()  # raises
        results = [end.result() for end in self._ends]
        return results if self._many else results[0]

    def cancel(self) -> int:
        return 0

    def retry(self) -> int:
        return 0

    def _dead_step_if_stuck(self) -> None:
        return None


class AsyncFlowHandle(Generic[R]):
    """A flow's handle whose verbs are awaited."""

    def __init__(self, handle: FlowHandle[R]) -> None:
        self._sync = handle
        self.id = handle.id

    async def result(self, timeout: Duration = 10) -> R:
        """As `FlowHandle.result`. It waits a second at a time, so that a cancelled one soon frees its thread."""
        return await wait_in_slices(self._sync.app, self.id, self._sync.result, timeout)

    async def status(self) -> FlowState:
        return await self._sync.app.threads.run(self._sync.status)

    async def counts(self) -> dict[str, int]:
        return await self._sync.app.threads.run(self._sync.counts)

    async def cancel(self) -> int:
        return await self._sync.app.threads.run(self._sync.cancel)

    async def retry(self) -> int:
        return await self._sync.app.threads.run(self._sync.retry)

    def __repr__(self) -> str:
        return f"<AsyncFlowHandle {self.id}>"
