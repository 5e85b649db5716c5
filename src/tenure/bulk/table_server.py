"""A process that reads snapshots for a server: requests on its standard input, answers on its standard output.

It ends when its standard input is closed. Each message is a length, a flag and a body (`protocol.snapshot_readers`).
"""

from __future__ import annotations

import sys
from typing import IO

import msgspec

from tenure.bulk import table_messages
from tenure.bulk.plan import event_parts, plan
from tenure.bulk.snapshots import FolderSnapshot
from tenure.errors import TenureError
from tenure.protocol.problems import problem_of
from tenure.protocol.snapshot_readers import SIZE

_ask = msgspec.json.Decoder(table_messages.Ask).decode


def main() -> None:
    asks, answers = sys.stdin.buffer, sys.stdout.buffer
    while (head := asks.read(SIZE.size)) and len(head) == SIZE.size:
        size, _ = SIZE.unpack(head)
        _serve(asks.read(size), answers)


def _serve(request: bytes, answers: IO[bytes]) -> None:
    try:
        answer, failed = _answer(_ask(request)), 0
    except TenureError as exc:
        answer, failed = msgspec.json.encode(problem_of(exc)), 1
    except Exception as exc:  # noqa: BLE001 - the server gets the error as its answer
        error = TenureError(f"the table cannot be read: {type(exc).__name__}: {exc}")
        answer, failed = msgspec.json.encode(problem_of(error)), 1
    answers.write(SIZE.pack(len(answer), failed) + answer)
    answers.flush()


def _answer(ask: table_messages.Ask) -> bytes:
    moment, query = FolderSnapshot(ask.folder).view(), ask.query()
    if not ask.rows:
        return table_messages.page(moment, query, ask.space, ask.range())
    if ask.first_commit is not None and ask.end_commit is not None:
        parts = event_parts(moment.reader, ask.first_commit, ask.end_commit, ask.rows)
    else:
        parts = plan(moment, query, ask.rows)
    return msgspec.json.encode(table_messages.packed_parts(parts))


if __name__ == "__main__":
    main()
