"""Requests that begin like one before: what their heads decide is not worked out again.

A client's requests for a queue differ in nothing but their id and their length, and our client says these two last:

    POST /v1/queues/emails/jobs HTTP/1.1\r\n Host: … Accept: … Authorization: … Content-Type: …   the beginning
    Tenure-Request: 5f0c9a…\r\n Content-Length: 13216\r\n\r\n                                  what differs

Parsing a head, finding its route and checking what it may ask took a tenth of the time of a batch of a hundred jobs, and
a third of a single one's: code that runs once in a while is slow, however short it is. A beginning is learnt from a request
that was parsed, allowed and answered the long way. Who asks is still asked for each request: a token ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tenure.protocol.dispatcher import Prepared

#: Those for which it is worth it, and whose paths name nothing but a queue.
LEARNT = frozenset({"enqueue", "claim", "settle"})
_END = b"\r\n\r\n"
_NAME = b"\r\nTenure-Request: "
_LENGTH = b"\r\nContent-Length: "
#: A head with one of these takes a parser, every time.
_UNUSUAL = (
    b"\ntransfer-encoding", b"\nexpect", b"\nconnection", b"\nupgrade", b"\ncontent-length", b"\ncontent-encoding",
    b"\ntenure-request", b"\ntraceparent",
)  # fmt: skip
_LONGEST = 4096
_MANY = 1024


class Known(NamedTuple):
    prepared: Prepared
    #: Of the beginning.
    headers: Mapping[str, str]


class Found(NamedTuple):
    known: Known
    #: The request's id, as it was sent.
    name: str
    #: Where its body begins; it goes to the end.
    body: int


class Lane:
    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def find(self, data: bytes) -> Found | None:
        """Of one whole request, and nothing besides. None: it has to go the long way."""
        split = _split(data)
        known = None if split is None else self._known.get(data[: split[0]])
        return None if split is None or known is None else Found(known, split[1].decode("latin-1"), split[2])

    def learn(self, data: bytes, prepared: Prepared, headers: Mapping[str, str]) -> None:
        """From a request that was answered the long way, if it is one of those."""
        split = _split(data)
        if split is None or not 0 < (at := split[0]) < _LONGEST:
            return
        beginning = data[:at]
        lower = beginning.lower()
        # Lines end as they should, so that no parser sees another message in these bytes than this one does.
        if beginning.count(b"\n") != beginning.count(b"\r\n") or any(word in lower for word in _UNUSUAL):
            return
        if len(self._known) >= _MANY:
            self._known.clear()
        self._known[beginning] = Known(prepared, headers)


def _split(data: bytes) -> tuple[int, bytes, int] | None:
    """Where the beginning ends, the request's id, and where the body begins; None: the head does not end as ours do."""
    end = data.find(_END)
    at = data.rfind(_NAME, 0, end) if end > 0 else -1
    if at < 0:
        return None
    name, _, length = data[at + len(_NAME) : end].partition(_LENGTH)
    if b"\r" in name or b"\n" in name or not length.isdigit() or len(length) > 9 or len(data) != end + 4 + int(length):
        return None
    return at, name, end + 4
