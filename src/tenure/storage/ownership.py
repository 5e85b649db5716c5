"""Who has a store open: what its owner writes into the file OWNER, and what others make of it.

A process id alone says little: two containers on one volume may both be process 1, and a number is used again after its
process has ended. So a record has a random id, by which its writer knows its own; and boot id, pid namespace and start
time of the process, by which others on the same system can tell whether it is still there.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""The facts of `record`, as they were read back: those of an older version are fewer."""

#: Ids of the records that this process has written and not withdrawn.
_ours: set[str] = set()


def record(*, listens: bool) -> tuple[str, bytes]:
    """The id and the bytes of a new record of this process. `listens`: it will let others in by its socket."""
    made = secrets.token_hex(16)
    _ours.add(made)
    facts = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": int(time.time()),
        "listens": listens,
        "id": made,
        "place": _place(),
        "start": _start(os.getpid()),
    }
    return made, json.dumps(facts).encode()


def withdraw(id: str | None) -> None:
    """The record with that id is no longer this process's."""
    _ours.discard(id or "")


def lets_in(written: bytes) -> bool:
    """Whether others may expect to be let in by a socket, soon if not now: by the owner, or by the one that follows it.

    Of a record that cannot be read, or whose writer is gone, nothing is known: another process has only just taken the
    folder.
    """
    found = _read(written)
    if found is None:
        return True
    if _is_ours(found):
        return False
    return bool(found.get("listens")) or _gone(found)


def described(written: bytes) -> tuple[str, str]:
    """Who holds it, and what to do about it: for people."""
    found = _read(written)
    if found is None or _gone(found):
        return "another process", "Stop it, or give this one a folder of its own."
    if _is_ours(found):
        return "this process", "Share the open store: it is safe for threads."
    since = time.strftime("%F %T", time.gmtime(found["since"]))
    who = f"process {found['pid']} on {found['host']} (since {since} UTC)"
    if found.get("place", _place()) != _place():
        return (
            f"{who}, in another container or on another machine",
            "Stop that container (its process ids are not those of this one), or give this one a folder of its own.",
        )
    return who, f"Stop it (kill {found['pid']}), or give this one a folder of its own."


def _read(written: bytes) -> Record | None:
    try:
        found = json.loads(written)
        return found if isinstance(found["pid"], int) and isinstance(found["since"], int) and found["host"] else None
    except (ValueError, KeyError, TypeError):
        return None


def _is_ours(found: Record) -> bool:
    if "id" in found:
        return found["id"] in _ours
    return bool(found["pid"] == os.getpid())  # written by an older version


def _gone(found: Record) -> bool:
    """Whether its writer is known to have ended. Never true of one in another container or on another machine."""
    if found.get("place") != _place() or not found.get("start"):
        return False
    return _start(int(found["pid"])) != int(found["start"])


def _place() -> str:
    """This boot of this machine, and this pid namespace; empty where the system does not tell."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start(pid: int) -> int:
    """When a process of this place was started, in the system's ticks; 0 if there is none, or the system does not tell."""
    try:
        # After the name, which may hold anything: the 22nd field of the line, the 20th behind it.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
