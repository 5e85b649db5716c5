"""A client's token: sent to the server, read again from its file, and never sent to another host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import OpenError, SettingsError, Unauthenticated
from tenure.backends.remote.credentials import Credentials
from tests.server.running import Running, running, token


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running() as made:
        yield made


def bearer(scopes: str, lifetime: float = 600) -> str:
    return token("default", scopes, lifetime=lifetime)["Authorization"].removeprefix("Bearer ")


def test_a_store_behind_a_token(served: Running):
    with tenure.open(served.url, token=bearer("produce consume")) as store:
        queue = store.queue("emails")
        queue.enqueue(b"x")
        queue.ack(queue.claim()[0])
        with pytest.raises(tenure.Forbidden, match="admin"):
            queue.pause()
        with pytest.raises(tenure.Forbidden):
            store.queue("emails", "acme").enqueue(b"x")


@pytest.mark.parametrize("held", [None, "x.y.z"])
def test_without_one_it_does_not_open(held: str | None, served: Running):
    with pytest.raises(Unauthenticated):
        tenure.open(served.url, token=held)


def test_a_token_that_has_run_out_is_read_again(served: Running, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(bearer("produce") + "\n")
    with tenure.open(served.url, token_file=str(file)) as store:
        queue = store.queue("renewed")
        file.write_text(bearer("produce", lifetime=-60))
        queue.enqueue(b"with the one that was read")
        backend = store._backend
        backend._credentials.renew()  # type: ignore[attr-defined]  # as if time had passed: the one in hand has expired
        with pytest.raises(Unauthenticated):
            queue.enqueue(b"there is no other")
        file.write_text(bearer("produce"))
        queue.enqueue(b"with the one in the file")
        assert queue.counts().enqueued == 2


@pytest.mark.parametrize("bad", ["", "a b", "a\r\nX-Admin: 1", "\u00e9", "a\0b"])
def test_what_is_no_token(bad: str, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(bad)
    with pytest.raises(SettingsError) as caught:
        Credentials(None, str(file))
    assert "X-Admin" not in str(caught.value)
    if bad:
        with pytest.raises(SettingsError):
            Credentials(bad)


def test_two_are_one_too_many(tmp_path: Path):
    with pytest.raises(SettingsError, match="one of them"):
        Credentials("a", str(tmp_path))
    with pytest.raises(SettingsError, match="not-there"):
        Credentials(None, str(tmp_path / "not-there"))


def test_it_does_not_show_itself():
    assert "secret" not in repr(Credentials("secret"))
    assert Credentials("secret").header == "Authorization: Bearer secret\r\n"
    assert Credentials().header == ""


def test_a_text_that_is_no_token_is_told_so(served: Running):
    with pytest.raises(Unauthenticated, match="the token is not a JSON Web Token: 'tenure token' issues one"):
        tenure.open(served.url, token="secret")


def test_a_url_with_a_wrong_path_names_the_url(served: Running):
    with pytest.raises(OpenError, match=f"no Tenure server answers at {served.url}/shop.*path of the URL"):
        tenure.open(f"{served.url}/shop", token=bearer("consume"))
