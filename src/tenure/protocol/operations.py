"""The table of operations: each defined once, for every server and the client.

An operation has a method and path, the required scope, the types of its request and answer, and the function that
carries it out on a backend (`job_operations`, `admin_operations`). One that may wait declares what for, so that a
server can wait without holding a thread. Its verb (by default of the same name) says whether a repeat under the same
request id gets the first outcome (`contract.verbs`).

    OPERATIONS["enqueue"]   POST /v1/queues/{queue}/jobs   produce   JobBody, or a list of them  ->  Enqueued, or a list
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tenure.contract.verbs import VERBS
from tenure.errors import InvalidArgument
from tenure.model.event import EventPage
from tenure.model.explanation import Explanation
from tenure.model.group import GroupPage
from tenure.model.job import Counts, Enqueued, Job, Page, Replayed, Restored, Swept
from tenure.model.lease import Extended
from tenure.model.quota import Quota
from tenure.model.report import Report
from tenure.model.retry import Policy
from tenure.model.snapshot import JournalSlice, SnapshotInfo
from tenure.model.write import LoadTarget, Published, WriteState
from tenure.protocol import admin_operations as c
from tenure.protocol import job_operations as w
from tenure.protocol import messages as m
from tenure.protocol.calls import Call, Operation, Waiting
from tenure.protocol.identity import Scope


def _operation(
    name: str,
    method: str,
    path: str,
    scope: Scope,
    asks: Any,  # types of many kinds, including unions: msgspec decodes them
    answers: Any,
    run: Callable[[Call], object],
    summary: str,
    *,
    verb: str | None = None,
    waits: Callable[[Call], Waiting | None] | None = None,
    local: bool = False,
) -> Operation:
    """Return the operation with the traits of its verb."""
    of = VERBS[verb or name]
    return Operation(
        name, method, path, scope, asks, answers, run, summary, of.name, of.remembered, of.small, waits, local
    )


_Q = "/v1/queues/{queue}"
_J = _Q + "/jobs/{job}"
_ALL = (
    _operation("enqueue", "POST", _Q + "/jobs", "produce", m.Jobs | m.JobBody, list[Enqueued] | Enqueued, w.enqueue,
               "Enqueue a job, or a list of jobs in one transaction."),
    _operation("list", "GET", _Q + "/jobs", "any", m.ListQuery, Page, w.list_jobs,
               "Jobs in a state, one page at a time."),
    _operation("get", "GET", _J, "any", m.Nothing, Job, w.get, "A job in its current state."),
    _operation("cancel", "DELETE", _J, "produce", m.Nothing, m.Done, w.cancel,
               "Remove a job that has not ended; its holder is notified."),
    _operation("groups", "GET", _Q + "/groups", "any", m.GroupsQuery, GroupPage, w.groups,
               "The groups of a queue that have jobs, one page at a time."),
    _operation("holder", "GET", _Q + "/key", "any", m.KeyQuery, m.KeyHolder, w.holder,
               "The job that holds an idempotency key."),
    _operation("timeline", "GET", _J + "/timeline", "any", m.Nothing, m.EventList, w.timeline,
               "The events of a job."),
    _operation("parents", "GET", _J + "/parents", "any", m.ParentsQuery, m.ParentList, w.parents,
               "The jobs that a job waits or waited for, with their results."),
    _operation("children", "GET", _J + "/children", "any", m.ChildrenQuery, m.ChildList, w.children,
               "The first of the jobs that wait or waited for a job."),
    _operation("steps", "GET", _J + "/steps", "any", m.Nothing, m.StepList, w.steps,
               "The steps and signals of a job."),
    _operation("signal", "POST", _J + "/signal", "produce", m.SignalBody, m.Given, w.signal,
               "Send a signal to a job; a job that waits for it becomes ready."),
    _operation("explain", "GET", _J + "/explain", "any", m.Nothing, Explanation, w.explain,
               "Where a job is, why, what happened and what happens next, in sentences.", verb="timeline"),
    _operation("wait_for", "GET", _J + "/wait", "any", m.WaitQuery, Job, w.wait_for,
               "The job, once it is done, dead or removed.", waits=w.wait_for_waits),
    _operation("claim", "POST", _Q + "/claims", "consume", m.ClaimBody, m.ClaimReply, w.claim,
               "Claim jobs under one lease, waiting for the first.", waits=w.claim_waits),
    _operation("claim_several", "POST", "/v1/claims", "consume", m.ClaimSeveralBody, m.ClaimReply, w.claim,
               "Claim jobs from the first of several queues that has any.", waits=w.claim_waits, verb="claim"),
    _operation("claim_any", "POST", "/v1/claims/any", "consume", m.ClaimAnyBody, m.ClaimReply, w.claim,
               "Claim jobs from the queue whose turn it is: tenants take turns, then their queues.",
               waits=w.claim_waits),
    _operation("extend", "POST", _Q + "/leases/{lease}/extend", "consume", m.ExtendBody, Extended, w.extend,
               "Extend the lease of a whole claim."),
    _operation("settle", "POST", _Q + "/settle", "consume", m.SettleBody, m.SettleReply, w.settle,
               "Ack, nack, fail or release deliveries, each by its receipt."),
    _operation("progress", "POST", _Q + "/progress", "consume", m.ProgressBody, m.Done, w.progress,
               "Report the progress of a delivery."),
    _operation("record_step", "POST", _Q + "/steps", "consume", m.StepBody, m.StepValue, w.record_step,
               "Store the value of a step of a delivery's job, once."),
    _operation("policy", "GET", _Q + "/policy", "any", m.Nothing, Policy, c.policy, "The queue's policy."),
    _operation("configure", "PUT", _Q + "/policy", "admin", Policy, m.Done, c.configure, "Set the queue's policy."),
    _operation("pause", "POST", _Q + "/pause", "admin", m.Nothing, m.Done, c.pause,
               "Pause a queue: claims return nothing until it is resumed.", verb="set_paused"),
    _operation("resume", "POST", _Q + "/resume", "admin", m.Nothing, m.Done, c.resume,
               "End a pause.", verb="set_paused"),
    _operation("replay", "POST", _Q + "/replay", "admin", m.ReplayBody, Replayed, c.replay, "Replay dead jobs."),
    _operation("purge", "POST", _Q + "/purge", "admin", m.PurgeBody, m.Count, c.purge, "Remove every job in a state."),
    _operation("restore", "POST", _Q + "/restore", "admin", m.RestoreBody, Restored, c.restore,
               "Insert jobs in the state that they had elsewhere, by their ids."),
    _operation("discard", "POST", _Q + "/discard", "admin", m.DiscardBody, m.JobIdList, c.discard,
               "Remove those ended jobs that have not changed."),
    _operation("counts", "GET", _Q + "/counts", "any", m.Nothing, Counts, w.counts, "The queue's counts."),
    _operation("queues", "GET", "/v1/queues", "any", m.QueuesQuery, m.QueueList, w.queues,
               "The tenant's queues, one page at a time; for an operator without a tenant: all."),
    _operation("apply", "PUT", "/v1/queues", "admin", dict[str, Policy], m.Done, c.apply,
               "Set the policies of several queues, in one transaction.", verb="configure"),
    _operation("replace_queues", "PUT", "/v1/queue-set", "admin", dict[str, Policy], m.Done, c.replace_queues,
               "Make these the tenant's queues, and delete all others, in one transaction."),
    _operation("delete_queue", "DELETE", _Q, "admin", m.DeleteQuery, m.Done, c.delete_queue,
               "Delete a queue with its policy and jobs."),
    _operation("quotas", "GET", "/v1/quotas", "operator", m.Nothing, m.QuotaList, c.quotas,
               "The quotas of tenants, and how much each has waiting."),
    _operation("set_quota", "PUT", "/v1/quotas/{tenant}", "operator", Quota, m.Done, c.set_quota,
               "Set a tenant's quota."),
    _operation("schedules", "GET", "/v1/schedules", "any", m.Nothing, m.ScheduleList, c.schedules,
               "The tenant's schedules; for an operator without a tenant: all."),
    _operation("add_schedule", "PUT", "/v1/schedules/{schedule}", "admin", m.ScheduleBody, m.Done, c.add_schedule,
               "Enqueue a job repeatedly, by a cron expression or an interval.", verb="change_schedule"),
    _operation("remove_schedule", "DELETE", "/v1/schedules/{schedule}", "admin", m.Nothing, m.Done, c.remove_schedule,
               "Remove a schedule.", verb="change_schedule"),
    _operation("pause_schedule", "POST", "/v1/schedules/{schedule}/pause", "admin", m.Nothing, m.Done,
               c.pause_schedule, "Pause a schedule: it enqueues nothing until it is resumed.", verb="change_schedule"),
    _operation("resume_schedule", "POST", "/v1/schedules/{schedule}/resume", "admin", m.Nothing, m.Done,
               c.resume_schedule, "End a schedule's pause.", verb="change_schedule"),
    _operation("run_schedule", "POST", "/v1/schedules/{schedule}/run", "produce", m.Nothing, Enqueued, c.run_schedule,
               "Enqueue a schedule's job now.", verb="enqueue"),
    _operation("draw", "POST", "/v1/quotas/{tenant}/draw", "operator", m.DrawBody, m.Count, c.draw,
               "Count a tenant's requests against its rate."),
    _operation("begin_write", "PUT", "/v1/writes/{write}", "produce", m.WriteBody, WriteState, c.begin_write,
               "Record the manifest of a staged write; a repeat returns the first."),
    _operation("write_state", "GET", "/v1/writes/{write}", "produce", m.Nothing, WriteState, c.write_state,
               "The progress of a staged write."),
    _operation("publish", "POST", "/v1/writes/{write}/chunks/{chunk}", "produce", m.ChunkBody, Published, c.publish,
               "Publish the jobs of a staged write's next chunk, once."),
    _operation("finish_write", "POST", "/v1/writes/{write}/finish", "produce", m.FinishBody, WriteState, c.finish_write,
               "Finish a staged write: no chunk is left to publish."),
    _operation("put_piece", "PUT", "/v1/writes/{write}/parts/{part}/{piece}", "produce", m.PieceBody, m.Done,
               c.put_piece,
               "Keep a piece of a part that is being staged, for a day."),
    _operation("piece", "GET", "/v1/writes/{write}/parts/{part}/{piece}", "produce", m.Nothing, m.PieceBody, c.piece,
               "A piece of a staged part."),
    _operation("drop_pieces", "DELETE", "/v1/writes/{write}/parts", "produce", m.Nothing, m.Done, c.drop_pieces,
               "Remove what a write has staged."),
    _operation("load_target", "POST", _Q + "/load-target", "operator", m.Nothing, LoadTarget, c.load_target,
               "The facts about a queue that executors need to create a bulk load's files.", local=True),
    _operation("load", "POST", "/v1/writes/{write}/load", "operator", m.LoadBody, WriteState, c.load,
               "Ingest the sorted files of a bulk load, which are in the store's own folder.", local=True),
    _operation("take_snapshot", "POST", "/v1/snapshots", "operator", m.TakeBody, SnapshotInfo, c.take_snapshot,
               "Take a named snapshot, which is kept until it has not been used for a while."),
    _operation("snapshots", "GET", "/v1/snapshots", "operator", m.Nothing, m.SnapshotList, c.snapshots,
               "The named snapshots."),
    _operation("renew_snapshot", "POST", "/v1/snapshots/{snapshot}/renew", "operator", m.Nothing, SnapshotInfo,
               c.renew_snapshot,
               "Renew a snapshot that is in use."),
    _operation("drop_snapshot", "DELETE", "/v1/snapshots/{snapshot}", "operator", m.Nothing, m.Done, c.drop_snapshot,
               "Remove a snapshot now."),
    _operation("table_parts", "GET", "/v1/snapshots/{snapshot}/{table}/parts", "operator", m.PartsQuery, m.PartList,
               c.table_parts,
               "Where to split a table of a snapshot for parallel reads.", verb="renew_snapshot"),
    _operation("read_table", "GET", "/v1/snapshots/{snapshot}/{table}", "operator", m.PageQuery, m.Stream, c.read_table,
               "Some rows of a table of a snapshot, as an Arrow stream with the position of the next rows.",
               verb="renew_snapshot"),
    _operation("journal_slice", "GET", "/v1/journal", "operator", m.SliceQuery, JournalSlice, c.journal_slice,
               "Rows of the journal, as stored."),
    _operation("find", "GET", "/v1/jobs/{job}", "any", m.Nothing, Job, w.find,
               "A job by its id, from any queue."),
    _operation("list_all", "GET", "/v1/jobs", "any", m.ListAllQuery, Page, w.list_all,
               "Jobs in a state, from all queues, one page at a time."),
    _operation("upcoming", "GET", "/v1/upcoming", "any", m.UpcomingQuery, Page, w.upcoming,
               "Scheduled jobs, earliest first."),
    _operation("events", "GET", "/v1/events", "any", m.EventsQuery, EventPage, w.events,
               "The journal after a cursor; with Accept: text/event-stream, as a stream.", waits=w.events_waits),
    _operation("newest_events", "GET", "/v1/events/newest", "any", m.NewestQuery, EventPage, w.newest_events,
               "The last events, oldest first, and the cursor after them."),
    _operation("forget_consumer", "DELETE", "/v1/consumers/{consumer}", "operator", m.Nothing, m.Done,
               c.forget_consumer,
               "Unregister a consumer, so that the journal can be trimmed past it."),
    # These belong to the server, not to the store.
    Operation("call_off", "DELETE", "/v1/requests/{request}", "any", m.Nothing, m.Done, w.call_off,
               "End the caller's own waiting request, by its id.", verb="", remembered=False, small=False),
    _operation("store", "GET", "/v1/store", "any", m.Nothing, m.StoreInfo, w.store,
               "Information about the store.", verb="now_ms"),
    _operation("sweep", "POST", "/v1/admin/sweep", "operator", m.Nothing, Swept, c.sweep,
               "Run one bounded pass of the sweeper."),
    _operation("cleanup", "POST", "/v1/admin/cleanup", "operator", m.CleanupBody, m.Count, c.cleanup,
               "Remove done jobs past their retention, or all jobs that ended before a moment."),
    _operation("check", "POST", "/v1/admin/check", "operator", m.CheckBody, Report, c.check, "Verify every invariant."),
    _operation("snapshot", "POST", "/v1/admin/snapshot", "operator", m.SnapshotBody, m.Done, c.snapshot,
               "Write a copy of one moment to a new folder.", local=True),
)  # fmt: skip

OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _ALL}

for _each in _ALL:
    msgspec.json.Decoder(_each.asks)  # inspect the fields now, in one thread: see `formats`


def decoded_query(operation: Operation, query: dict[str, str]) -> object:
    """Decode a request from a query string, where every value is text."""
    if not query and operation.asks is m.Nothing:
        return m.Nothing()
    try:
        return msgspec.convert(query, operation.asks, strict=False)
    except msgspec.ValidationError as exc:
        raise InvalidArgument(str(exc)) from None
