"""The site's tasks."""

from __future__ import annotations

from typing import Any

from django.tasks import task


@task()
def noop(*args: Any, **kwargs: Any) -> None: ...


@task
async def anoop(*args: Any, **kwargs: Any) -> None: ...


@task(queue_name="mail", priority=10)
def add(a: int, b: int) -> int:
    return a + b


@task
def pair() -> tuple[int, str]:
    return 1, "two"


class MailError(Exception):
    pass


@task
def fails(message: str) -> None:
    raise MailError(message)


@task
def fails_plainly() -> None:
    raise ValueError("no: really")


@task
def returns_an_object() -> object:
    return object()


@task(takes_context=True)
def in_context(context: Any, word: str) -> list[Any]:
    result = context.task_result
    return [word, context.attempt, result.id, result.status, len(result.worker_ids)]


@task(takes_context=True, queue_name="retrying", backend="retrying")
def second_time_lucky(context: Any) -> int:
    if context.attempt == 1:
        raise MailError("busy")
    return int(context.attempt)


@task(queue_name="outboxed", backend="outbox")
def outboxed(word: str) -> str:
    return word.upper()
