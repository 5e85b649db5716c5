"""The Lua library: its files joined, and named by a digest of their text, so that two releases can share a server."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import NamedTuple

from tenure.backends.redis.constants import preamble

#: Verbs that a full server (`maxmemory`) still runs: they free memory, end work in progress, or let workers claim jobs
#: to end them. What they add (a journal row, a lease) is small compared with what they free.
WHEN_FULL = frozenset({
    "bind_request", "cancel", "claim", "claim_any", "count_chunk", "delete_queue", "discard", "events", "extend", "finish_write", "forget_consumer", "index_queues",
    "pause_schedule", "progress", "purge", "remember", "remove_schedule", "retire", "set_aside", "set_paused", "settle", "sweep", "sweep_registry",
})  # fmt: skip


class Script(NamedTuple):
    """The library as one script, whose first argument is the verb."""

    source: str
    sha: str


class Library(NamedTuple):
    #: Derived from the content: another version is another library, whose functions have other names.
    name: str
    #: The text for FUNCTION LOAD.
    source: str
    #: For servers without functions: the same code, for most verbs, and for those of `WHEN_FULL`.
    script: Script
    script_when_full: Script
    verbs: frozenset[str]
    readers: frozenset[str]

    def function(self, verb: str) -> str:
        return f"{self.name}_{verb}"

    def script_of(self, verb: str) -> Script:
        return self.script_when_full if verb in WHEN_FULL or verb in self.readers else self.script


@cache
def library(any_queue: bool = True) -> Library:
    """The library. `any_queue`: one step reaches the keys of all queues, so that verbs keep the index for `claim_any`."""
    folder = resources.files(__package__).joinpath("lua")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".lua")), key=lambda f: f.name)
    switch = f"local ANY_QUEUE = {str(any_queue).lower()}"
    body = "\n".join([preamble(), switch, *(f.read_text("utf-8") for f in files)])
    verbs = frozenset(re.findall(r"^verbs\.(\w+) =", body, re.MULTILINE))
    readers = frozenset(re.findall(r"^readers\.(\w+) =", body, re.MULTILINE))
    name = "tenure_" + hashlib.sha256((body + ",".join(sorted(WHEN_FULL))).encode()).hexdigest()[:12]
    return Library(
        name,
        _library(name, body, verbs, readers),
        _script("#!lua\n", body),
        _script("#!lua flags=allow-oom\n", body),
        verbs,
        readers,
    )


def _script(head: str, body: str) -> Script:
    source = head + body + _DISPATCH
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _library(name: str, body: str, verbs: frozenset[str], readers: frozenset[str]) -> str:
    """Return the library's source.

    A library may use almost no Lua while it loads, so its code runs at the first call.
    """
    lines = [f"#!lua name={name}", "local all", "local function first()", body, _ALL, "end"]
    for verb in sorted(verbs | readers):
        flag = "no-writes" if verb in readers else "allow-oom" if verb in WHEN_FULL else ""
        flags = f", flags = {{'{flag}'}}" if flag else ""
        call = f"function(keys, args) if not all then first() end return all.{verb}(keys, args) end"
        lines.append(f"redis.register_function{{function_name = '{name}_{verb}', callback = {call}{flags}}}")
    return "\n".join(lines)


_ALL = """
all = {}
for name, verb in pairs(verbs) do all[name] = verb end
for name, reader in pairs(readers) do all[name] = reader end
"""
_DISPATCH = """
local verb = table.remove(ARGV, 1)
return (verbs[verb] or readers[verb])(KEYS, ARGV)
"""
