"""Operations of administrators, bulk writers and bulk readers, each carried out on a backend."""

from __future__ import annotations

import base64
import re
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from tenure.contract.scheduling import run_now
from tenure.errors import Forbidden, InvalidArgument, NotFound
from tenure.model.ids import job_id_bytes
from tenure.model.job import Enqueued, Replayed, Restored, Swept
from tenure.model.names import DEFAULT_TENANT, checked
from tenure.model.report import Report
from tenure.model.retry import Policy
from tenure.model.schedule import Schedule, ScheduleChange
from tenure.model.snapshot import JournalSlice, SnapshotInfo
from tenure.model.write import LoadRequest, LoadTarget, Published, WriteState, checked_write_id
from tenure.protocol import messages as m
from tenure.protocol.calls import Call
from tenure.protocol.snapshot_readers import READERS

# ── maintenance and administration ────────────────────────────────────────────────────────────────────────────────────


def policy(call: Call) -> Policy:
    return call.backend.policy(call.name)


def configure(call: Call) -> m.Done:
    call.backend.configure({call.name: call.request.checked()})
    return m.Done()


def apply(call: Call) -> m.Done:
    policies = {call.identity.queue(name, call.tenant): policy.checked() for name, policy in call.request.items()}
    if policies:
        call.backend.configure(policies)
    return m.Done()


def quotas(call: Call) -> m.QuotaList:
    return m.QuotaList(call.backend.quotas(call.tenant))


def set_quota(call: Call) -> m.Done:
    call.backend.set_quota(checked("tenant", call.path["tenant"]), call.request.checked())
    return m.Done()


def schedules(call: Call) -> m.ScheduleList:
    found = call.backend.schedules(call.tenant)
    return m.ScheduleList([schedule for schedule in found if call.sees(schedule.tenant, schedule.queue)])


def add_schedule(call: Call) -> m.Done:
    """Store a schedule. Raises Forbidden or NotFound if the caller may not name its queue."""
    call.identity.queue(call.request.queue, call.tenant)
    name, tenant = call.path["schedule"], _own_tenant(call)
    if call.request.replace:
        _visible_schedule(call, name, missing_is_fine=True)
    schedule = call.request.checked(name, tenant)
    call.backend.change_schedule(tenant, name, ScheduleChange(put=schedule, replace=call.request.replace))
    return m.Done()


def pause_schedule(call: Call) -> m.Done:
    return _change_schedule(call, ScheduleChange(pause=True))


def resume_schedule(call: Call) -> m.Done:
    return _change_schedule(call, ScheduleChange(pause=False))


def remove_schedule(call: Call) -> m.Done:
    return _change_schedule(call, ScheduleChange(remove=True))


def run_schedule(call: Call) -> Enqueued:
    schedule = _visible_schedule(call, call.path["schedule"])
    assert schedule is not None
    return run_now(call.backend, schedule)


def _change_schedule(call: Call, change: ScheduleChange) -> m.Done:
    name = call.path["schedule"]
    _visible_schedule(call, name)
    if not call.backend.change_schedule(_own_tenant(call), name, change):
        raise NotFound("there is no such schedule")
    return m.Done()


def _own_tenant(call: Call) -> str:
    return DEFAULT_TENANT if call.tenant is None else call.tenant


def _visible_schedule(call: Call, name: str, *, missing_is_fine: bool = False) -> Schedule | None:
    """Return the schedule of that name. Raises NotFound if there is none, or the caller may not see its queue."""
    tenant = _own_tenant(call)
    found = next((each for each in call.backend.schedules(tenant) if each.name == name), None)
    if (found is None and not missing_is_fine) or (found is not None and not call.sees(tenant, found.queue)):
        raise NotFound("there is no such schedule")
    return found


def draw(call: Call) -> m.Count:
    return m.Count(call.backend.draw(checked("tenant", call.path["tenant"]), call.request.requests))


def delete_queue(call: Call) -> m.Done:
    if not call.backend.delete_queue(call.name, call.request.force):
        raise NotFound("there is no such queue")
    return m.Done()


def replace_queues(call: Call) -> m.Done:
    if call.identity.queues is not None:
        raise Forbidden("a token limited to some queues may not replace all of the tenant's queues")
    named = {checked("queue", queue): policy.checked() for queue, policy in call.request.items()}
    call.backend.replace_queues(DEFAULT_TENANT if call.tenant is None else call.tenant, named)
    return m.Done()


def pause(call: Call) -> m.Done:
    call.backend.set_paused(call.name, True)
    return m.Done()


def resume(call: Call) -> m.Done:
    call.backend.set_paused(call.name, False)
    return m.Done()


def replay(call: Call) -> Replayed:
    return call.backend.replay(call.name, call.request.checked())


def purge(call: Call) -> m.Count:
    return m.Count(call.backend.purge(call.name, call.request.state))


def sweep(call: Call) -> Swept:
    return call.backend.sweep()


def cleanup(call: Call) -> m.Count:
    return m.Count(call.backend.cleanup(call.request.before_ms, call.request.limit))


def check(call: Call) -> Report:
    return call.backend.check(call.request.repair)


def snapshot(call: Call) -> m.Done:
    call.backend.snapshot(call.request.path)
    return m.Done()


def forget_consumer(call: Call) -> m.Done:
    if not call.backend.forget_consumer(checked("consumer", call.path["consumer"])):
        raise NotFound("there is no such consumer")
    return m.Done()


# ── restores and staged writes ────────────────────────────────────────────────────────────────────────────────────────


def restore(call: Call) -> Restored:
    if not call.request.jobs:
        return Restored(added=[], there=[], refused={})
    return call.backend.restore(call.name, [job.checked() for job in call.request.jobs])


def discard(call: Call) -> m.JobIdList:
    wanted = {job_id_bytes(job): token for job, token in call.request.tokens.items()}
    removed = call.backend.discard(call.name, call.request.state, wanted) if wanted else []
    return m.JobIdList([job.hex() for job in removed])


def begin_write(call: Call) -> WriteState:
    request = call.request
    return _without_prefix(call, call.backend.begin_write(_write_id(call), request.manifest, request.keep_ms))


def write_state(call: Call) -> WriteState:
    state = call.backend.write_state(_write_id(call))
    if state is None:
        raise NotFound("there is no such write, or it has been forgotten")
    return _without_prefix(call, state)


def publish(call: Call) -> Published:
    chunk = _number(call, "chunk")
    name = call.identity.queue(call.request.queue, call.tenant)
    return call.backend.publish(_write_id(call), chunk, name, m.job_requests(call.request.jobs), call.request.refused)


def finish_write(call: Call) -> WriteState:
    forget = call.request.forget
    return _without_prefix(
        call,
        call.backend.finish_write(
            _write_id(call), None if forget is None else _scoped_id(call, checked_write_id(forget))
        ),
    )


def put_piece(call: Call) -> m.Done:
    call.backend.put_piece(_write_id(call), call.path["part"], _number(call, "piece"), call.request.data)
    return m.Done()


def piece(call: Call) -> m.PieceBody:
    data = call.backend.piece(_write_id(call), call.path["part"], _number(call, "piece"))
    if data is None:
        raise NotFound("there is no such piece, or it has expired")
    return m.PieceBody(data)


def drop_pieces(call: Call) -> m.Done:
    call.backend.drop_pieces(_write_id(call))
    return m.Done()


def _number(call: Call, what: str) -> int:
    text = call.path[what]
    if not text.isdecimal() or len(text) > 9:
        raise InvalidArgument(f"{what} {text!r} is not a number")
    return int(text)


def load_target(call: Call) -> LoadTarget:
    return call.backend.load_target(call.name)


def load(call: Call) -> WriteState:
    request = call.request
    return _without_prefix(
        call,
        call.backend.load(
            LoadRequest(_write_id(call), request.manifest, request.parts, request.keep_ms, request.chunk)
        ),
    )


def _write_id(call: Call) -> str:
    return _scoped_id(call, checked_write_id(write_name(call.path["write"])))


def _scoped_id(call: Call, write_id: str) -> str:
    """Return the id prefixed by its owner, so that no tenant, and no token for some queues, can name others."""
    return _prefix(call) + write_id


def _prefix(call: Call) -> str:
    tenant, queues = call.tenant, call.identity.queues
    if queues is None:
        return "" if tenant is None else f"{tenant}/"
    return f"{tenant or ''}/{blake2b(' '.join(sorted(queues)).encode(), digest_size=8).hexdigest()}/"


def _without_prefix(call: Call, state: WriteState) -> WriteState:
    return replace(state, id=state.id.removeprefix(_prefix(call)))


# ── snapshots and the journal ─────────────────────────────────────────────────────────────────────────────────────────


def take_snapshot(call: Call) -> SnapshotInfo:
    return call.backend.take_snapshot(checked("snapshot", call.request.name), call.request.ttl_ms)


def renew_snapshot(call: Call) -> SnapshotInfo:
    return call.backend.renew_snapshot(call.path["snapshot"])


def drop_snapshot(call: Call) -> m.Done:
    if not call.backend.drop_snapshot(call.path["snapshot"]):
        raise NotFound("there is no such snapshot")
    return m.Done()


def snapshots(call: Call) -> m.SnapshotList:
    return m.SnapshotList(call.backend.snapshots())


def table_parts(call: Call) -> m.PartList:
    return m.PartList(msgspec.json.decode(_read(call)))


def read_table(call: Call) -> m.Stream:
    return m.Stream(_read(call))


def _read(call: Call) -> bytes:
    """Read the table in a separate process, from the snapshot's folder."""
    info = call.backend.renew_snapshot(call.path["snapshot"])
    if info.where is None:
        raise InvalidArgument("the snapshots of this store are not in a folder, and cannot be read as tables")
    # Not `to_builtins`, which omits default values: the reader does not know the defaults.
    fields = {name: getattr(call.request, name) for name in call.request.__struct_fields__}
    selection = {name: value for name, value in fields.items() if value is not None}
    return READERS.ask({"folder": info.where, "table": call.path["table"], **selection})


def journal_slice(call: Call) -> JournalSlice:
    return call.backend.journal_slice(call.request.begin, call.request.end, call.request.max_bytes)


_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


def write_word(write_id: str) -> str:
    """Return a write's id as one segment of a path: unchanged, or `~` and base64 if it has other characters."""
    if _PLAIN.fullmatch(write_id):
        return write_id
    return "~" + base64.urlsafe_b64encode(write_id.encode()).decode().rstrip("=")


def write_name(word: str) -> str:
    if not word.startswith("~"):
        return word
    try:
        return base64.urlsafe_b64decode(word[1:] + "=" * (-(len(word) - 1) % 4)).decode()
    except ValueError:
        raise InvalidArgument(f"{word!r} is not the id of a write") from None
