"""Names that users choose, checked where they come in.

    queues, consumers, snapshots   1 to 64 of a-z 0-9 . _ -                       chosen by whoever writes the program
    tenants, groups                1 to 128 of A-Z a-z 0-9 . _ - | @ : + = ~      as identity providers name them

Both start with a letter or a digit. Tenants and groups differ by case: `ACME` and `acme` are two. No name holds `/` (which parts
tenant and queue in text and in Redis keys), a brace (a Redis hash tag), a space or a sign that is not ASCII.
"""

from __future__ import annotations

import re
from typing import NamedTuple

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

#: Kinds of names that follow the tenants' rule.
_WIDE = frozenset({"tenant", "group"})
DEFAULT_TENANT = "default"
MAX_WORKER_BYTES = 64
MAX_KEY_BYTES = 512


class QueueName(NamedTuple):
    """A queue is named within its tenant; the pair is its full name."""

    tenant: str
    queue: str

    def __str__(self) -> str:
        return self.queue if self.tenant == DEFAULT_TENANT else f"{self.tenant}/{self.queue}"


#: No queue has this name: it stands for all of them where claims wait.
ANY_QUEUE = QueueName("", "")


class JobName(NamedTuple):
    """A job and the queue it is in."""

    queue: QueueName
    job: bytes


def checked(kind: str, name: object) -> str:
    """The name of a tenant or group (`kind`) or of something else, if it may be one. Raises InvalidArgument."""
    pattern, rule = (_TENANT, _TENANT_RULE) if kind in _WIDE else (_NAME, _NAME_RULE)
    if not isinstance(name, str) or not pattern.match(name):
        raise InvalidArgument(f"{kind} {name!r}: {rule}")
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
