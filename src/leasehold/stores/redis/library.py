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
    name = "leasehold_" + hashlib.sha256(body.encode()).hexdigest()[:12]
    source = f"#!lua name={name}\n{body}{_REGISTER.format(name=name)}"
    script = body + _DISPATCH
    return Library(
        name,
        source,
        script,
        hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest(),
        frozenset(re.findall(r"^verbs\.(\w+) =", body, re.MULTILINE)),
        frozenset(re.findall(r"^readers\.(\w+) =", body, re.MULTILINE)),
    )


_REGISTER = """
for name, fn in pairs(verbs) do
  redis.register_function{{function_name = '{name}_' .. name, callback = fn}}
end
for name, fn in pairs(readers) do
  redis.register_function{{function_name = '{name}_' .. name, callback = fn, flags = {{'no-writes'}}}}
end
"""
_DISPATCH = """
local verb = table.remove(ARGV, 1)
return (verbs[verb] or readers[verb])(KEYS, ARGV)
"""
