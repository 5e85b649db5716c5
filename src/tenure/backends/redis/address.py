"""Parse a store's URL: servers, transport, login, database and options.

    redis://[user:password@]host[:port][/db]            one server         rediss:// the same over TLS
    redis+unix:///path/to/socket                        one server on this machine
    redis+cluster://host[:port][,host[:port]…]          a cluster          rediss+cluster:// over TLS
    redis+sentinel://host[:port][,…]/service[/db]       the primary that Sentinel names

`valkey` may replace `redis`. Options follow a `?`: those of `storage.redis`, by their names.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from tenure.errors import OpenError
from tenure.settings import without_password

_SCHEME = re.compile(r"(redis|valkey)(s?)(?:\+(unix|cluster|sentinel))?\Z")
_PORTS = {"server": 6379, "cluster": 6379, "sentinel": 26379}
Kind = Literal["server", "unix", "cluster", "sentinel"]
_QUOTED = "write '@' in a password as %40, '/' as %2F, '?' as %3F, '#' as %23, '[' as %5B and '%' as %25"
#: The options allowed after the `?`, named as the settings.
OPTIONS = (
    "prefix", "partitions", "one_slot", "wait_replicas", "wait_aof", "ca_file", "cert_file", "key_file", "timeout", "patience",
    "bloom_keys", "bloom_ghosts", "bloom_cleanup", "bloom_capacity", "bloom_keys_capacity", "bloom_ghosts_capacity",
    "bloom_cleanup_capacity", "bloom_rate", "bloom_rotation",
)  # fmt: skip


class Address(NamedTuple):
    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    path: str = ""
    db: int = 0
    user: str | None = None
    password: str | None = None
    tls: bool = False
    service: str = ""
    options: dict[str, str] = {}  # noqa: RUF012 - never changed
    #: The URL without the password, for people, logs and metrics.
    shown: str = ""


def parse(url: str) -> Address:
    """Parse a URL. Raises OpenError, which never shows the password, if it is malformed."""
    shown = without_password(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may quote the password
        raise OpenError(f"{shown!r} cannot be read: {_QUOTED}") from None
    match = _SCHEME.match(parts.scheme)
    if match is None:
        raise OpenError(f"{shown!r} is not the URL of a Redis or Valkey server")
    kind: Kind = match[3] or "server"  # type: ignore[assignment]
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = [name for name in options if name not in OPTIONS]
    # A '/', '?' or '#' in a login ends it early for the parser: what follows may be the rest of the password.
    may_have_login = kind != "unix" or parts.netloc
    outside = [parts.path, parts.fragment, *unknown]
    outside += [value for name, value in options.items() if not name.endswith("_file")]
    if may_have_login and "@" not in parts.netloc and any("@" in part for part in outside):
        raise OpenError(f"{shown!r} cannot be read: {_QUOTED}")
    if unknown:
        raise OpenError(f"{shown!r}: no option is called {unknown[0]!r}. There are {', '.join(OPTIONS)}")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    address = Address(
        kind,
        tuple(_host(url, host, _PORTS.get(kind, 0)) for host in hosts.split(",") if host),
        user=unquote(user) or None,
        password=unquote(password) or None,
        tls=bool(match[2]),
        options=options,
        shown=shown,
    )
    steps = [step for step in parts.path.split("/") if step]
    if kind == "unix":
        if not parts.path or hosts:
            raise OpenError(f"{shown!r} has no path: write 'redis+unix:///path/to/socket'")
        return address._replace(path=unquote(parts.path))
    if not address.hosts:
        raise OpenError(f"{without_password(url)!r} names no host: write 'redis://host:6379'")
    if kind == "server" and len(address.hosts) > 1:
        raise OpenError(
            f"{without_password(url)!r} names several hosts: write 'redis+cluster://' or 'redis+sentinel://'"
        )
    if kind == "sentinel":
        if not steps:
            raise OpenError(f"{without_password(url)!r} names no service: write 'redis+sentinel://host:26379/mymaster'")
        address = address._replace(service=unquote(steps.pop(0)))
    if kind == "cluster" and steps not in ([], ["0"]):
        raise OpenError(f"{without_password(url)!r}: a cluster has one database, 0")
    return address._replace(db=_db(url, steps))


def _host(url: str, text: str, port: int) -> tuple[str, int]:
    host, colon, number = text.rpartition(":") if re.search(r":\d*\Z", text) else (text, "", "")
    if colon and not number.isdigit():
        raise OpenError(f"{without_password(url)!r}: {text!r} is not a host and a port")
    return host.strip("[]") or "localhost", int(number) if number else port


def _db(url: str, steps: list[str]) -> int:
    if not steps:
        return 0
    if len(steps) > 1 or not steps[0].isdigit():
        raise OpenError(f"{without_password(url)!r}: a database is a number, as in 'redis://host:6379/0'")
    return int(steps[0])
