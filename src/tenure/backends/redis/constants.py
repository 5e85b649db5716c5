"""Values shared by Python and Lua: this module generates the Lua library's first lines from Python's values.

    STATE CHANGE REASON VERDICT OUTCOME BACKOFF JITTER ON_PARENT_DEAD   tables of names, from the enums and lists of Python
    GONE WAITING LEASED DONE DEAD, HAS_KEY …             the same as locals, where speed counts
    LIMIT                                                times in milliseconds, sizes of batches
    FORMAT BYTES                                         layouts of records and their sizes, from Python's `struct`
    L.id_sum L.sum L.sum_of_halves WEIGHT                a state's checksum, from the weights in `records`

Stored numbers are forever: State, Change, Reason, flags, layouts and weights are never renumbered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum
from struct import Struct

from tenure.backends.redis import records
from tenure.backends.redis.records import FLAGS, ID_WEIGHTS, LEASE_WEIGHT, SEAL_BYTES, SMALL_WEIGHTS, WIDE_WEIGHTS
from tenure.model.durations import MAX_MS
from tenure.model.job import PRIORITIES
from tenure.model.lifecycle import Change, Reason, State
from tenure.model.schedule import MAX_SCHEDULES
from tenure.model.step import MAX_STEPS, MAX_STEPS_BYTES
from tenure.queueing.flows import KEPT_FOR_CHILDREN_MS
from tenure.queueing.journal import KEPT_MS
from tenure.queueing.leases import CLAIM_MEMORY_MS
from tenure.queueing.outcomes import REQUEST_MEMORY_MS
from tenure.queueing.sweep import BATCH
from tenure.storage.records import EVENTS_A_ROW, ON_PARENT_DEAD

#: Verdicts on a delivery, as encoded in a request.
VERDICTS = {"ack": 0, "nack": 1, "fail": 2, "release": 3}
#: Outcomes of a verdict, one letter each in the answer.
OUTCOMES = {
    "settled": "k", "gone": "g", "corrupt": "c", "already_settled": "s", "lost": "l", "no_lease": "n", "expired": "x",
}  # fmt: skip
#: How many waiters to wake when all of them should look.
WAKE_ALL = 1_000_000
#: An event's position is one number: its row, and in these low bits its index in the row.
PLACE_BITS = 10
#: Version byte of states and journal rows.
VERSION = 1
#: For a claim by turns: members read at once, and jobs selected before they are claimed.
GROUP_PAGE = 64
TURNS_AT_ONCE = 2000
#: Used instead of a priority, for groups that wait for a point in time. Stored: do not renumber.
FORGET_GROUP, REVISE_GROUPS = 255, 254

LIMITS = {
    "EVENTS_A_ROW": EVENTS_A_ROW,
    "PLACES": 1 << PLACE_BITS,
    "BATCH": BATCH,
    "SWEEP_LEASES": BATCH,
    "SWEEP_JOBS": 10 * BATCH,
    "CLAIM_MEMORY_MS": CLAIM_MEMORY_MS,
    "REQUEST_MEMORY_MS": REQUEST_MEMORY_MS,
    "LOOK_AGAIN_MS": 3_600_000,
    "JOURNAL_KEPT_MS": KEPT_MS,
    "KEPT_FOR_CHILDREN_MS": KEPT_FOR_CHILDREN_MS,
    "MAX_MS": MAX_MS,
    "MAX_SCHEDULES": MAX_SCHEDULES,
    "MAX_STEPS": MAX_STEPS,
    "MAX_STEPS_BYTES": MAX_STEPS_BYTES,
    "PRIORITIES": PRIORITIES,
    "TOP_PRIORITY": PRIORITIES - 1,
    "TOP_TIER": 2 * PRIORITIES - 1,
    "GROUP_BODY": records.GROUP_BODY,
    "GROUP_PAGE": GROUP_PAGE,
    "TURNS_AT_ONCE": TURNS_AT_ONCE,
    "FORGET_GROUP": FORGET_GROUP,
    "REVISE_GROUPS": REVISE_GROUPS,
    "WAKE_ALL": WAKE_ALL,
    "SEAL_BYTES": SEAL_BYTES,
    "VERSION": VERSION,
}

_CODES = {"B": "B", "H": "I2", "I": "I4", "Q": "I8", "d": "d"}


def lua_format(layout: Struct) -> str:
    """Translate a big-endian layout of Python's `struct` into the format of Lua's `struct`."""
    found = re.fullmatch(r">((?:\d+s|[BHIQd])+)", layout.format)
    if found is None:
        raise ValueError(f"{layout.format!r}: Lua has no such layout")
    parts = re.findall(r"\d+s|[BHIQd]", found[1])
    return ">" + "".join(f"c{part[:-1]}" if part.endswith("s") else _CODES[part] for part in parts)


def _layouts() -> dict[str, tuple[str, int]]:
    layouts = {
        "LEASE": records.LEASE, "RULES": records.RULES, "BODY": records.BODY, "WISH": records.WISH,
        "KEYED": records.KEYED, "SETTLE": records.SETTLE, "DELIVERY": records.DELIVERY, "WOKEN": records.WOKEN,
        "DISCARD": records.DISCARD, "TIME": records.TIME, "PLACE": records.PLACE, "THERE": records.THERE,
        "CONFLICT": records.CONFLICT, "GROUP_RULES": records.GROUP_RULES, "LINKS": records.LINKS,
        "PARENT_HERE": records.PARENT_HERE, "WAITS": records.WAITS, "STEPS": records.STEPS, "STEP": records.STEP,
        "SCHEDULE": records.SCHEDULE, "RESTORED_STEP": records.RESTORED_STEP,
        "RESTORED_PARENT": records.RESTORED_PARENT,
        "ROW": records.ROW, "GROUP": records.GROUP, "REST": records.REST,
        "STATE": Struct(records.STATE.format + "I"), "STATE_HEAD": records.STATE_HEAD,
        "STATE_TAIL": Struct(f">{records.STATE_HEAD.size}sQ16sI"),
    }  # fmt: skip
    made = {name: (lua_format(layout), layout.size) for name, layout in layouts.items()}
    # 8-byte numbers as two halves, for verbs on many jobs: the checksum weighs the halves separately.
    for name in ("STATE", "DELIVERY", "REST"):
        text, size = made[name]
        made[f"{name}_HALVES"] = (text.replace("I8", "I4I4"), size)
    return made


def _table(name: str, values: Mapping[str, object]) -> str:
    inside = ", ".join(f"{key} = {_value(value)}" for key, value in values.items())
    return f"local {name} = {{{inside}}}"


def _value(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else f"{int(value):d}" if isinstance(value, int) else repr(value)


def _locals(values: Mapping[str, int]) -> str:
    return f"local {', '.join(values)} = {', '.join(str(int(value)) for value in values.values())}"


def _members(kind: type[IntEnum]) -> dict[str, object]:
    return {member.name: int(member) for member in kind}


def _numbered(names: Iterable[str]) -> dict[str, object]:
    return {name.upper(): number for number, name in enumerate(names)}


def preamble() -> str:
    """Return the library's first lines; the files of lua/ follow."""
    layouts = _layouts()
    return "\n".join([
        "-- Made by constants.py: change the values in Python.",
        "local L = {}",
        _locals({state.name: int(state) for state in State}),
        _locals(FLAGS),
        _table("CHANGE", _members(Change)),
        _table("REASON", _members(Reason)),
        _table("VERDICT", {name.upper(): number for name, number in VERDICTS.items()}),
        _table("OUTCOME", {name.upper(): letter for name, letter in OUTCOMES.items()}),
        _table("BACKOFF", _numbered(records.KINDS)),
        _table("JITTER", _numbered(records.JITTERS)),
        _table("ON_PARENT_DEAD", _numbered(ON_PARENT_DEAD)),
        _table("LIMIT", LIMITS),
        _table("FORMAT", {name: text for name, (text, _) in layouts.items()}),
        _table("BYTES", {name: size for name, (_, size) in layouts.items()}),
        _checksums(),
    ])  # fmt: skip


def _checksums() -> str:
    """Return Lua's checksum functions: `L.sum` takes a state's fields, `L.sum_of_halves` what FORMAT.STATE_HALVES
    unpacks.

    Each is one expression, because verbs on many jobs spend most of their time there. Sums stay below 2 ^ 53, so they
    are exact.
    """
    ids = " + ".join(f"{word} * {weight}" for word, weight in zip("abcd", ID_WEIGHTS, strict=True))
    small = " + ".join(f"{name} * {weight}" for name, weight in SMALL_WEIGHTS.items())
    halves = {name: (f"{name}1", f"{name}0") for name in WIDE_WEIGHTS}
    wide = " + ".join(
        f"{low} * {WIDE_WEIGHTS[name][0]} + {high} * {WIDE_WEIGHTS[name][1]}" for name, (high, low) in halves.items()
    )
    split = "\n".join(
        f"  local {high} = math.floor({name} / 4294967296)\n  local {low} = {name} - {high} * 4294967296"
        for name, (high, low) in halves.items()
    )
    small_names, wide_names = ", ".join(SMALL_WEIGHTS), ", ".join(WIDE_WEIGHTS)
    half_names = ", ".join(half for pair in halves.values() for half in pair)
    return f"""
local T = 4294967296
local WEIGHT = {{LAST_WORD = {ID_WEIGHTS[-1]}, LAST_EVENT = {WIDE_WEIGHTS["last"][0]}}}
function L.id_sum(id)
  local a, b, c, d = struct.unpack('>I4I4I4I4', id)
  return ({ids}) % T
end
function L.sum(id, lease, {small_names}, {wide_names})
{split}
  return (id + lease * {LEASE_WEIGHT} + {small} + {wide}) % T
end
function L.sum_of_halves(a, b, c, d, lease, {small_names}, {half_names})
  return ({ids} + lease * {LEASE_WEIGHT} + {small} + {wide}) % T
end"""
