"""What a shell completes beyond commands and options: the names of queues, read from the store that the line names."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tenure.cli.session import Session
from tenure.errors import TenureError

if TYPE_CHECKING:
    _Text = click.ParamType[str]
else:
    _Text = click.ParamType  # of older releases it takes no argument


class QueueType(_Text):
    """The name of a queue: any text, completed by those that the store has."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The tenant's queues that begin so. A store that cannot be opened has none: a completion says nothing."""
        session = ctx.ensure_object(Session)
        session.json = True  # no remarks between the names
        logging.disable(logging.CRITICAL)
        try:
            with session.store() as store:
                return [
                    CompletionItem(info.queue, help=f"{info.counts.waiting} waiting")
                    for info in store.queues(session.tenant)
                    if info.queue.startswith(incomplete)
                ]
        except (TenureError, OSError):
            return []
        finally:
            logging.disable(logging.NOTSET)


QUEUE = QueueType()
