"""Numbers and layouts that Python and Lua share are written in Python alone."""

from __future__ import annotations

import re
from enum import IntEnum
from importlib import resources
from struct import Struct

import pytest

from tenure.backends.redis import constants, records
from tenure.backends.redis.library import library
from tests.backends.redis.servers import Server

pytestmark = pytest.mark.xdist_group("redis")

#: Layouts that only Lua reads and writes.
_LUA_ONLY = {
    ">" + "I8" * 12,  # the counters of a shard
    ">I6I2", ">I3", ">c12I3B",  # the parts of a new id
    ">I4I4I4I4",  # the words of an id
    ">I8d",  # the bucket of a rate
    ">I4I4",  # the marker of a chunk
    ">I8I8I4I8d",  # the row of a group
    ">BI8c16",  # a place in a list
    ">I8I8",  # what is remembered of a request
}  # fmt: skip
#: Larger numbers that only Lua knows: its own batches, bits of a UUID, lengths of rows that Python never reads.
_LUA_ONLY_NUMBERS = {
    "00_keys.lua": {3999, 4000}, "10_records.lua": {1000}, "20_step.lua": {96, 1000},
    "45_groups.lua": {36}, "92_check_groups.lua": {200, 500}, "30_enqueue.lua": {0x80, 256, 4095, 0x7000, 64, 33}, "50_claim.lua": {33, 2000}, "60_settle.lua": {256},
    "75_sweep.lua": {10_000}, "80_queries.lua": {52}, "90_check.lua": {33, 40, 100, 200, 500},
}  # fmt: skip


def _lua() -> dict[str, str]:
    """The Lua files, without their comments."""
    folder = resources.files("tenure.backends.redis").joinpath("lua")
    return {f.name: re.sub(r"--.*", "", f.read_text("utf-8")) for f in folder.iterdir() if f.name.endswith(".lua")}


def test_another_number_in_python_is_another_number_in_lua(monkeypatch: pytest.MonkeyPatch) -> None:
    class Change(IntEnum):
        ENQUEUED = 99

    before = constants.preamble()
    monkeypatch.setattr(constants, "Change", Change)
    assert "CHANGE = {ENQUEUED = 99}" in constants.preamble()
    assert "ENQUEUED = 10," in before
    monkeypatch.setitem(constants.LIMITS, "BATCH", 77)
    monkeypatch.setattr(records, "WISH", Struct(">BQ"))
    assert "BATCH = 77" in constants.preamble()
    assert "WISH = '>BI8'" in constants.preamble()
    assert "WISH = 9" in constants.preamble()


def test_the_library_is_named_by_its_numbers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    name = library().name
    monkeypatch.setitem(constants.LIMITS, "BATCH", 77)
    library.cache_clear()
    try:
        assert library().name != name
    finally:
        monkeypatch.undo()
        library.cache_clear()


def test_every_layout_is_the_same_in_both_languages(server: Server) -> None:
    client = server.client()
    for layout in (
        records.STATE,
        records.LEASE,
        records.RULES,
        records.SETTLE,
        records.DELIVERY,
        records.ROW,
        records.GROUP,
    ):
        fields = [1 + n if code != "d" else 1.5 for n, code in enumerate(re.findall(r"16s|[BHIQd]", layout.format))]
        values = [
            b"%016d" % n if code == "16s" else n
            for n, code in zip(fields, re.findall(r"16s|[BHIQd]", layout.format), strict=True)
        ]
        script = "local f = {struct.unpack(ARGV[1], ARGV[2])} f[#f] = nil return struct.pack(ARGV[1], unpack(f))"
        packed = layout.pack(*values)
        assert client.eval(script, 0, constants.lua_format(layout), packed) == packed
    with pytest.raises(ValueError, match="no such layout"):
        constants.lua_format(Struct("<I"))


def test_lua_writes_no_layout_that_python_knows() -> None:
    for name, text in _lua().items():
        assert set(re.findall(r"'(>[^']*)'", text)) <= _LUA_ONLY, name


def test_lua_writes_no_number_that_python_knows() -> None:
    """Codes, reasons and verdicts go by name; no larger number stands in the Lua but those that are its own."""
    for name, text in _lua().items():
        bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", text)
        large = {int(found, 0) for found in re.findall(r"(?<![\w.])(0x[0-9a-fA-F]+|\d+)(?![\w.])", bare)}
        large = {number for number in large if number > 17 and number != 32}  # arguments by place, ids of 16 bytes
        assert large <= _LUA_ONLY_NUMBERS.get(name, set()), name
        for call in ("event", "group", "give_back", "remove_waiting", "remove_ended", "kill"):
            # "state and 3 or 4" would hide two codes, too
            assert not re.findall(rf"L\.{call}\((?:[^()]|\([^()]*\))*?, \d+[,)]", bare.replace(", 0, lease", "")), (
                name,
                call,
            )
        assert not re.findall(r"(?:state|reason|verb|kind|jitter) [=~]= \d", bare), name


def test_no_name_is_used_that_is_not_made() -> None:
    made = constants.preamble()
    for name, text in _lua().items():
        for table in (
            "CHANGE",
            "REASON",
            "VERDICT",
            "OUTCOME",
            "BACKOFF",
            "JITTER",
            "LIMIT",
            "FORMAT",
            "BYTES",
            "WEIGHT",
        ):
            line = next(line for line in made.splitlines() if line.startswith(f"local {table} = "))
            for used in re.findall(rf"\b{table}\.(\w+)", text):
                assert re.search(rf"[{{ ]{used} = ", line), f"{name}: {table}.{used}"
