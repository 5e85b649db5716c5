"""Encode requests as RESP bytes in Python.

`hiredis.pack_command` crashes the process when a signal handler raises inside it (seen with hiredis 3.5). So every
connection encodes its requests with this; hiredis still parses the answers.
"""

from __future__ import annotations

import redis

Arg = bytes | str | int | float


class Packer:
    """The packer that redis-py calls with a command's arguments. It has no state."""

    def pack(self, *args: Arg) -> list[bytes]:
        words = _bytes(args[0]).split()  # "CLIENT SETINFO" is two arguments
        parts = [b"*%d\r\n" % (len(words) + len(args) - 1)]
        for arg in (*words, *args[1:]):
            raw = arg if type(arg) is bytes else _bytes(arg)
            parts += (b"$%d\r\n" % len(raw), raw, b"\r\n")
        return [b"".join(parts)]


def _bytes(arg: Arg) -> bytes:
    if isinstance(arg, str):
        return arg.encode()
    if isinstance(arg, float):
        return repr(arg).encode()
    return b"%d" % arg if isinstance(arg, int) else bytes(arg)


_PACKER = Packer()


def packing_in_python(client: redis.Redis) -> redis.Redis:
    """Make the client's connections encode with `Packer`. Requires: it has no connections yet."""
    client.connection_pool.connection_kwargs["command_packer"] = _PACKER
    return client
