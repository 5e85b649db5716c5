"""Names that users choose, and their checks.

    queues, consumers, snapshots   1 to 64 of a-z 0-9 . _ -                       chosen by a programmer
    tenants, groups                1 to 128 of A-Z a-z 0-9 . _ - | @ : + = ~      as identity providers name them

Both start with a letter or a digit. Tenants and groups are case-sensitive: `ACME` and `acme` are two. No name contains
`/` (the separator of tenant and queue in text and in Redis keys), a brace (a Redis hash tag), a space or a character
outside ASCII.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Container, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple, overload

from tenure.errors import InvalidArgument

NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,63}"
TENANT_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._|@:+=~-]{0,127}"
_NAME = re.compile(NAME_PATTERN + r"\Z")
_TENANT = re.compile(TENANT_PATTERN + r"\Z")
_NAME_RULE = "a name has 1 to 64 of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit"
_TENANT_RULE = (
    "it has 1 to 128 of A-Z, a-z, 0-9, '.', '_', '-', '|', '@', ':', '+', '=' and '~',"
    " and starts with a letter or digit"
)

#: Kinds of names that follow the rule of tenants.
_WIDE = frozenset({"tenant", "group"})
DEFAULT_TENANT = "default"
MAX_WORKER_BYTES = 64
MAX_KEY_BYTES = 512


class QueueName(NamedTuple):
    """The full name of a queue: its tenant, and its name within the tenant."""

    tenant: str
    queue: str

    def __str__(self) -> str:
        return self.queue if self.tenant == DEFAULT_TENANT else f"{self.tenant}/{self.queue}"


def queue_cursor(name: QueueName) -> str:
    """The cursor of a list of queues: the name of its next queue, with the tenant."""
    return f"{name.tenant}/{name.queue}"


def queue_of_cursor(cursor: str) -> QueueName:
    """The queue that a page begins with. Raises InvalidArgument."""
    tenant, _, queue = cursor.partition("/")
    try:
        return queue_name(queue, tenant)
    except InvalidArgument:
        raise InvalidArgument("that is not a cursor of this list") from None


#: Stands for all queues where claims wait. No queue can have this name.
ANY_QUEUE = QueueName("", "")


class NamesInTurn(Sequence[QueueName]):
    """Distinct queue names as a rotation, starting at any of them. Made once for a list of many claims."""

    __slots__ = ("_first", "_left", "_names", "_places")

    def __init__(self, names: Sequence[QueueName]) -> None:
        self._names, self._first = tuple(names), 0
        self._places = {name: place for place, name in enumerate(self._names)}
        #: The last answer of `besides`, as indexes, by its `version`. One entry, shared by all rotations.
        self._left: dict[object, list[int]] = {}

    def beginning(self, first: int) -> NamesInTurn:
        """The same names, starting at index `first`."""
        made = NamesInTurn.__new__(NamesInTurn)
        made._names, made._places, made._left, made._first = self._names, self._places, self._left, first
        return made

    def besides(self, others: Container[QueueName], version: object) -> Sequence[QueueName]:
        """The names that are not in `others`, in rotation order. The answer is cached until `version` changes."""
        left = self._left.get(version)
        if left is None:
            left = [place for name, place in self._places.items() if name not in others]
            self._left.clear()
            self._left[version] = left
        names, at = self._names, bisect_left(left, self._first)
        return [names[place] for place in chain(islice(left, at, None), islice(left, at))]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[QueueName]:
        return chain(islice(self._names, self._first, None), islice(self._names, self._first))

    @overload
    def __getitem__(self, at: int) -> QueueName: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[QueueName]: ...
    def __getitem__(self, at: int | slice) -> QueueName | Sequence[QueueName]:
        if isinstance(at, slice):
            return tuple(self)[at]
        if not -len(self._names) <= at < len(self._names):
            raise IndexError(at)
        return self._names[(self._first + at) % len(self._names)]


class JobName(NamedTuple):
    """A job and the queue it is in."""

    queue: QueueName
    job: bytes


def checked(kind: str, name: object) -> str:
    """Return the name if it is valid for its `kind` ("tenant", "group", "queue", …). Raises InvalidArgument."""
    pattern, rule = (_TENANT, _TENANT_RULE) if kind in _WIDE else (_NAME, _NAME_RULE)
    if not isinstance(name, str) or not pattern.match(name):
        raise InvalidArgument(f"{kind} {_shown(name)}: {rule}")
    return name


#: How many characters of a refused value an error message repeats.
_SHOWN = 200


def _shown(value: object) -> str:
    """The value for an error message, cut if it is long: a caller may have sent megabytes."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


def queue_name(queue: object, tenant: object = DEFAULT_TENANT) -> QueueName:
    return QueueName(checked("tenant", tenant), checked("queue", queue))


def short_text(kind: str, text: object, limit: int) -> str:
    """Return the text if it has 1 to `limit` UTF-8 bytes (keys, workers, claim ids). Raises InvalidArgument."""
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"{kind} must be a non-empty string, not {_shown(text)}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{kind} {text!r} is not valid Unicode") from None
    if size > limit:
        raise InvalidArgument(f"{kind} has {size} bytes, and at most {limit} are taken")
    return text
