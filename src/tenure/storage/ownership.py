"""The record in the file OWNER: which process has a store open.

A process id alone is not enough: two containers on one volume may both be process 1, and ids are reused. So a record
has a random id, by which a process recognises its own record; and boot id, pid namespace and start time of the process,
by which others on the same system can tell whether it still runs.
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
"""A record as it was read back. One of an older version has fewer fields."""

#: Ids of the records that this process has written and not withdrawn.
_ours: set[str] = set()


def record(*, listens: bool) -> tuple[str, bytes]:
    """Make a record of this process: its id and its bytes. `listens`: others may join by its socket."""
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
    """The record with that id no longer describes this process."""
    _ours.discard(id or "")


def lets_in(written: bytes) -> bool:
    """Whether other processes should try to join by a socket: the owner's, or that of the next owner.

    True for a record that cannot be read, or whose process has ended: another process is just taking the folder.
    """
    found = _read(written)
    if found is None:
        return True
    if _is_ours(found):
        return False
    return bool(found.get("listens")) or _gone(found)


def described(written: bytes) -> tuple[str, str]:
    """The owner, and what the user can do about it, for an error message."""
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
    """Whether its process is known to have ended. False for one in another container or on another machine."""
    if found.get("place") != _place() or not found.get("start"):
        return False
    return _start(int(found["pid"])) != int(found["start"])


def _place() -> str:
    """This boot of this machine, and this pid namespace; empty if the system does not provide them."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start(pid: int) -> int:
    """The start time of a process of this system, in clock ticks; 0: there is no such process, or no /proc."""
    try:
        # Field 22 of the line. Fields are counted after the name, which may contain spaces: the 20th there.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
