"""The Lua library: its files joined, and named by what they say, so that two releases can share a server."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import NamedTuple


class Library(NamedTuple):
    #: Named by its content: another version is another library, with functions of other names.
    name: str
    #: What FUNCTION LOAD takes.
    source: str
    #: The same as one script, for servers without functions; its first argument is the verb.
    script: str
    sha: str
    verbs: frozenset[str]
    readers: frozenset[str]

    def function(self, verb: str) -> str:
        return f"{self.name}_{verb}"


@cache
def library() -> Library:
    folder = resources.files(__package__).joinpath("lua")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".lua")), key=lambda f: f.name)
    body = "\n".join(f.read_text("utf-8") for f in files)
    name = "tenure_" + hashlib.sha256(body.encode()).hexdigest()[:12]
    verbs = frozenset(re.findall(r"^verbs\.(\w+) =", body, re.MULTILINE))
    readers = frozenset(re.findall(r"^readers\.(\w+) =", body, re.MULTILINE))
    script = body + _DISPATCH
    return Library(
        name,
        _library(name, body, verbs, readers),
        script,
        hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest(),
        verbs,
        readers,
    )


def _library(name: str, body: str, verbs: frozenset[str], readers: frozenset[str]) -> str:
    """While a library is loaded it may use next to nothing of Lua: all of it runs at the first call."""
    lines = [f"#!lua name={name}", "local all", "local function first()", body, _ALL, "end"]
    for verb in sorted(verbs | readers):
        flags = ", flags = {'no-writes'}" if verb in readers else ""
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
