"""A cursor of the journal tells its holder nothing, and cannot be made up."""

from __future__ import annotations

import base64
import os

import msgspec
import pytest

from tenure.backends.redis.cursor_seal import KEY_BYTES, CursorSeal
from tenure.errors import InvalidArgument
from tests.backends.redis.servers import RedisHarness, Server

pytestmark = pytest.mark.xdist_group("redis")


def _raw(cursor: str) -> bytes:
    return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


def test_a_cursor_shows_no_queue_and_no_count(server: Server) -> None:
    harness = RedisHarness(server.url, [server])
    with harness.open() as store:
        for number in range(5):
            store.queue(f"q{number}", tenant="others").enqueue_many([b"x"] * 3)
        mine = store.queue("mine", tenant="acme")
        mine.enqueue(b"x")
        cursor = store.events().cursor
        with pytest.raises((msgspec.MsgspecError, ValueError)):
            msgspec.msgpack.decode(_raw(cursor))
        # Others' work changes every byte of it, and not its length.
        store.queue("q0", tenant="others").enqueue(b"x")
        after = store.events(after=cursor)
        assert len(after.cursor) == len(cursor)
        same = sum(a == b for a, b in zip(_raw(cursor), _raw(after.cursor), strict=True))
        assert same < 16
        # One more queue of others does not show in its length either.
        store.queue("q9", tenant="others").enqueue(b"x")
        assert len(store.events(after=after.cursor).cursor) == len(cursor)
    # Another client of the store reads it.
    with harness.open() as store:
        assert [event.queue for event in store.events(after=after.cursor)] == ["q9", "q9"]
    harness.destroy()


def test_a_cursor_that_was_made_up_or_changed_is_refused(server: Server) -> None:
    """Else a holder could guess others' counts: a place past the end is answered differently from one before it."""
    harness = RedisHarness(server.url, [server])
    with harness.open() as store:
        store.queue("mine").enqueue(b"x")
        cursor = store.events().cursor
        guessed = msgspec.msgpack.encode((1, {64: (1, 0)}))
        made_up = [base64.urlsafe_b64encode(guessed).decode().rstrip("="), CursorSeal(os.urandom(32)).seal(guessed), ""]
        changed = bytearray(_raw(cursor))
        for index in range(0, len(changed), 7):
            changed[index] ^= 1
            made_up.append(base64.urlsafe_b64encode(changed).decode().rstrip("="))
            changed[index] ^= 1
        for text in made_up:
            with pytest.raises(InvalidArgument, match="not a cursor"):
                store.events(after=text)
        assert store.events(after=cursor).events == []
    harness.destroy()


def test_what_is_sealed_can_be_opened_whatever_its_size() -> None:
    seal = CursorSeal(os.urandom(KEY_BYTES))
    for size in (0, 1, 59, 60, 61, 1000, 100_000):
        text = os.urandom(size)
        sealed = seal.seal(text)
        assert seal.open(sealed) == text
        assert seal.seal(text) == sealed
        assert (len(_raw(sealed)) - 16).bit_count() == 1
