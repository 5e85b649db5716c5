"""Flows of tasks: chains, groups with a callback, and graphs. A flow is one `enqueue_many` of jobs that wait for jobs.

    chain(fetch.s(url), parse.s(), store.s())               each step gets the result of the one before
    group([parse.s(page) for page in pages]).then(merge.s())    the callback gets the list of all results

    flow = Flow()                                           a graph: what `add` returns is an argument of other steps
    left, right = flow.add(fetch.s(a)), flow.add(fetch.s(b))
    flow.add(compare.s(left, right))
    handle = flow.enqueue()

A chain or a group is laid out as a graph (`_Layout`), and there is one way to enqueue a graph. The type that a step
returns must fit the argument it becomes: `add` checks it. Nothing is enqueued before `enqueue` (or `delay`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from tenure.errors import InvalidArgument
from tenure.model.job import NewJob, OnParentDead
from tenure.worker.codec import FromParents
from tenure.worker.flow_handles import AsyncFlowHandle, FlowHandle, InlineFlowHandle
from tenure.worker.handles import Handle
from tenure.worker.parent_results import from_parents
from tenure.worker.type_fit import fits, hint_name

if TYPE_CHECKING:
    from tenure.worker.app import App
    from tenure.worker.tasks import Task

R = TypeVar("R", covariant=True)


class Step(Generic[R]):
    """A part of a flow: a call of a task, a chain or a group."""

    def flow(self) -> Flow:
        """Return this step laid out as a graph. Raises InvalidArgument if results do not fit."""
        flow = Flow()
        flow.ends = _Layout(flow).add(self, _NO_INPUT)
        return flow

    def enqueue(self) -> FlowHandle[R]:
        """Enqueue all its jobs in one transaction. Raises what `Queue.enqueue_many` raises."""
        return self.flow().enqueue()

    delay = enqueue

    async def enqueue_async(self) -> AsyncFlowHandle[R]:
        """As `enqueue`, without blocking the event loop."""
        return await self.flow().enqueue_async()


class Signature(Step[R]):
    """A call of a task that is not enqueued: `task.s(...)`. Arguments may be missing, or be nodes of a `Flow`."""

    def __init__(self, task: Task[Any, Any, R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.task = task
        self.given = task.codec.bind_partial(args, kwargs)

    def with_argument(self, name: str, value: object) -> Signature[R]:
        """Return the same call with one more argument."""
        return Signature(self.task, (), {**self.given, name: value})

    def check_complete(self) -> None:
        """Raise TypeError if an argument without a default is missing."""
        missing = self.task.codec.missing(self.given)
        if missing:
            raise TypeError(f"task {self.task.name}: missing a required argument: {missing[0]!r}")

    def __repr__(self) -> str:
        return f"{self.task.name}.s({', '.join(self.given)})"


class Chain(Step[R]):
    """Steps that run one after the other; each gets the previous one's result. Made by `chain`."""

    def __init__(self, steps: Sequence[Step[Any]], on_parent_dead: OnParentDead) -> None:
        self.steps = steps
        self.on_parent_dead = on_parent_dead
        # Raises if results do not fit. The first step may get arguments from a step before the chain.
        _Layout(Flow(), complete=False).add(self, _NO_INPUT)


class Group(Step[list[R]]):
    """Steps that run in parallel; their result is the list of their results. Made by `group`."""

    def __init__(self, members: Sequence[Step[R]]) -> None:
        self.members = members

    def then(self, callback: Step[Any], *, on_parent_dead: OnParentDead = "wait") -> Chain[Any]:
        """Return the group followed by a step that runs once all members have ended, with the list of their results.

        `on_parent_dead`: if a member is dead, the callback waits for its replay ("wait"), is cancelled ("cancel"), or
        runs with None in its place ("run").
        """
        return Chain([self, _step(callback)], on_parent_dead)


def chain(*steps: Step[Any], on_parent_dead: OnParentDead = "wait") -> Chain[Any]:
    """Return steps that run one after the other.

    A step gets the previous result as its first parameter that has no default and was not given. If all are given it
    only waits. `on_parent_dead`: the steps after a dead one "wait" for its replay, or "cancel" removes them, or "run"
    runs them with None as its result.
    """
    if not steps:
        raise InvalidArgument("a chain of no steps")
    return Chain([_step(each) for each in steps], on_parent_dead)


def group(members: Iterable[Step[R]]) -> Group[R]:
    """Return steps that run in parallel. An empty group has ended: what follows it gets an empty list."""
    if isinstance(members, Step):
        raise InvalidArgument("group([a.s(), b.s()]): it takes a list")
    return Group([_step(each) for each in members])


def _step(given: object) -> Step[Any]:
    if isinstance(given, Step):
        return given
    raise InvalidArgument(f"a step of a flow is task.s(...), a chain or a group, not {type(given).__name__}")


# ── graphs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Node:
    """A step of a graph. As an argument of another step it stands for its result."""

    __slots__ = ("_flow", "call", "fillings", "on_parent_dead", "parents", "place")

    def __init__(
        self, flow: Flow, place: int, call: Signature[Any], parents: list[Node], on_parent_dead: OnParentDead
    ) -> None:
        self._flow = flow
        self.place = place
        self.call = call
        #: Each once, in the order in which its job names them.
        self.parents = parents
        self.on_parent_dead = on_parent_dead
        #: The arguments that are results of parents.
        self.fillings: dict[str, FromParents] = {}

    @property
    def result_hint(self) -> Any:
        return self.call.task.codec.hints.get("return", Any)

    def belongs_to(self, flow: Flow) -> bool:
        return self._flow is flow

    def __repr__(self) -> str:
        return f"<Node {self.place} {self.call.task.name}>"


class Ends(NamedTuple):
    """The last nodes of a flow or a part of it: what the next step gets and waits for."""

    nodes: Sequence[Node]
    #: Whether the result is a list, as for a group.
    many: bool = False
    #: Further nodes for the next step to wait for: an empty group has no nodes, but follows others.
    after: Sequence[Node] = ()


_NO_INPUT = Ends(())


class Flow:
    """A graph of calls. `add` steps, then `enqueue` them all in one transaction.

    Its result is that of the step added last, unless `enqueue` names another.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.ends = _NO_INPUT

    def add(self, call: Signature[Any], *, after: Iterable[Node] = (), on_parent_dead: OnParentDead = "wait") -> Node:
        """Add a step.

        Its arguments may be nodes (their results), lists of nodes (the list of their results) and values.

        `after` are further nodes that it waits for. Raises InvalidArgument if a result does not fit its argument,
        TypeError if arguments are missing.
        """
        if not isinstance(call, Signature):
            raise InvalidArgument(f"a step of a graph is task.s(...), not {type(call).__name__}")
        call.check_complete()
        return self.add_checked(call, after, on_parent_dead)

    def add_checked(self, call: Signature[Any], after: Iterable[Node], on_parent_dead: OnParentDead) -> Node:
        """As `add`, for a call that is known to be complete, or need not be."""
        if self.nodes and call.task.app is not self.app:
            raise InvalidArgument(f"{call.task.name} is a task of another app: a flow is of one app and one tenant")
        node_arguments = {name: nodes for name, value in call.given.items() if (nodes := _nodes(value)) is not None}
        waited_for: list[object] = [*(node for nodes in node_arguments.values() for node in nodes), *after]
        parents = list(dict.fromkeys(self._own(each, call) for each in waited_for))
        node = Node(self, len(self.nodes), call, parents, on_parent_dead)
        places = {id(parent): place for place, parent in enumerate(parents)}
        for name, nodes in node_arguments.items():
            many = not isinstance(call.given[name], Node)
            _check_types(node, name, nodes, many)
            encodings = [parent.call.task.encoding for parent in nodes]
            node.fillings[name] = from_parents([places[id(parent)] for parent in nodes], encodings, many=many)
        self.nodes.append(node)
        self.ends = Ends([node])
        return node

    def flow(self) -> Flow:
        """Return itself, so that a graph can be used where a call, a chain or a group can."""
        return self

    def _own(self, parent: object, call: Signature[Any]) -> Node:
        if isinstance(parent, Node) and parent.belongs_to(self):
            return parent
        raise InvalidArgument(f"{call.task.name} waits for {parent!r}, which is no step of this flow")

    @property
    def app(self) -> App:
        """The app of its tasks. Raises InvalidArgument if it has no step."""
        if not self.nodes:
            raise InvalidArgument("the flow has no steps")
        return self.nodes[0].call.task.app

    def jobs(self, queue: str, prefix: str = "") -> list[NewJob]:
        """Return its jobs, in the order in which the steps were added, for a call on `queue`.

        `prefix` begins the jobs' names in that call. Raises InvalidArgument for unencodable arguments.
        """
        named = {parent.place for node in self.nodes for parent in node.parents}
        return [_job(node, queue, prefix, node.place in named) for node in self.nodes]

    def enqueue(self, result: Node | Sequence[Node] | None = None) -> FlowHandle[Any]:
        """Enqueue its jobs in one transaction. Raises what `Queue.enqueue_many` raises.

        `result` is the node whose result is the flow's, or several for a list; default: the step added last.
        """
        if result is not None:
            self.ends = Ends([result]) if isinstance(result, Node) else Ends(list(result), many=True)
        app = self.app
        if app.inline:
            return InlineFlowHandle(self)
        first = self.nodes[0].call.task
        jobs = self.jobs(first.queue)
        queue = app.store.queue(first.queue, first.tenant)
        enqueued = queue.enqueue_many(jobs)
        steps = [
            Handle(node.call.task, app.store.queue(node.call.task.queue, first.tenant), added.id, added.duplicate)
            for node, added in zip(self.nodes, enqueued, strict=True)
        ]
        return FlowHandle(app, steps, [node.place for node in self.ends.nodes], many=self.ends.many)

    delay = enqueue

    async def enqueue_async(self, result: Node | Sequence[Node] | None = None) -> AsyncFlowHandle[Any]:
        """As `enqueue`, without blocking the event loop."""
        return AsyncFlowHandle(await self.app.threads.run(functools.partial(self.enqueue, result)))


def _nodes(value: object) -> Sequence[Node] | None:
    """Return the nodes in an argument; None if it is a value."""
    if isinstance(value, Node):
        return (value,)
    if isinstance(value, (list, tuple)) and any(isinstance(each, Node) for each in value):
        if all(isinstance(each, Node) for each in value):
            return value
        raise InvalidArgument("a list of nodes has no other values in it: give them as another argument")
    return None


def _check_types(node: Node, name: str, parents: Iterable[Node], many: bool) -> None:
    """Raise InvalidArgument, with both names and types, if what a parent returns does not fit the argument."""
    task = node.call.task
    wanted = task.codec.hints.get(name, Any)
    for parent in {id(each.call.task): each for each in parents}.values():
        returned = parent.result_hint
        if node.on_parent_dead == "run" and returned is not Any:
            returned = returned | None
        arrives = list[returned] if many else returned  # type: ignore[valid-type]  # a type made at run time
        if not fits(arrives, wanted):
            also = ", or None if it is dead" if node.on_parent_dead == "run" else ""
            what = "a list of what" if many else "what"
            raise InvalidArgument(
                f"{parent.call.task.name} returns {hint_name(parent.result_hint)}{also}: {what} it returns does not fit "
                f"the argument {name!r} of {task.name}, which is {hint_name(wanted)}"
            )


def _job(node: Node, queue: str, prefix: str, named: bool) -> NewJob:
    task = node.call.task
    given = {name: value for name, value in node.call.given.items() if name not in node.fillings}
    payload = task.codec.encode_step(given, node.fillings)
    job = task.step_job(payload, given, waits=bool(node.parents))
    return msgspec.structs.replace(
        job,
        queue=None if task.queue == queue else task.queue,
        name=f"{prefix}{node.place}" if named else None,
        after=[f"#{prefix}{parent.place}" for parent in node.parents],
        on_parent_dead=node.on_parent_dead if node.parents else "cancel",
    )


class _Layout:
    """Lays chains and groups out as nodes of a graph."""

    def __init__(self, flow: Flow, *, complete: bool = True) -> None:
        """`complete`: steps without a step before them need all their arguments."""
        self._flow = flow
        self._complete = complete

    def add(self, step: Step[Any], inputs: Ends, on_parent_dead: OnParentDead = "wait") -> Ends:
        """Add a step after these nodes. Return its own last nodes."""
        if isinstance(step, Chain):
            for each in step.steps:
                inputs, on_parent_dead = self.add(each, inputs, on_parent_dead), step.on_parent_dead
            return inputs
        if isinstance(step, Group):
            members = [self.add(each, inputs, on_parent_dead) for each in step.members]
            if any(member.many for member in members):
                raise InvalidArgument("a member of a group ends with a group: say what follows it with .then(...)")
            return Ends(
                [node for member in members for node in member.nodes],
                True,
                () if members else [*inputs.nodes, *inputs.after],
            )
        assert isinstance(step, Signature)
        return Ends([self._add_call(step, inputs, on_parent_dead)])

    def _add_call(self, call: Signature[Any], inputs: Ends, on_parent_dead: OnParentDead) -> Node:
        after = [*inputs.nodes, *inputs.after]
        if inputs.many or inputs.nodes:
            missing = call.task.codec.missing(call.given)
            if missing:
                call = call.with_argument(missing[0], list(inputs.nodes) if inputs.many else inputs.nodes[0])
        if self._complete or after:
            call.check_complete()
        return self._flow.add_checked(call, after, on_parent_dead)
