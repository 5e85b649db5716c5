"""Shell completion of queue names, read from the store that the command line names."""

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
    _Text = click.ParamType  # not generic in older releases


class QueueType(_Text):
    """The name of a queue: any text, completed with the names in the store."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete with the tenant's queues that begin with this text; nothing if the store cannot be opened."""
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
