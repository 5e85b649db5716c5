"""Names users choose, checked once at the door."""

from __future__ import annotations

import re
from typing import NamedTuple

from tenure.errors import InvalidArgument

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")

DEFAULT_TENANT = "default"
MAX_WORKER_BYTES = 64
MAX_KEY_BYTES = 512


class QueueName(NamedTuple):
    """A queue is named within its tenant; the pair is its full name."""

    tenant: str
    queue: str

    def __str__(self) -> str:
        return self.queue if self.tenant == DEFAULT_TENANT else f"{self.tenant}/{self.queue}"


class JobName(NamedTuple):
    """A job and the queue it is in."""

    queue: QueueName
    job: bytes


def checked(kind: str, name: object) -> str:
    """The name, if it may be one: 1 to 64 of `a-z 0-9 . _ -`, starting with a letter or digit."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidArgument(
            f"{kind} {name!r}: a name has 1 to 64 of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit"
        )
    return name


def queue_name(queue: object, tenant: object = DEFAULT_TENANT) -> QueueName:
    return QueueName(checked("tenant", tenant), checked("queue", queue))


def short_text(kind: str, text: object, limit: int) -> str:
    """A non-empty string of at most `limit` UTF-8 bytes: keys, workers, claim ids."""
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"{kind} must be a non-empty string, not {text!r}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{kind} {text!r} is not valid Unicode") from None
    if size > limit:
        raise InvalidArgument(f"{kind} has {size} bytes, and at most {limit} are taken")
    return text
