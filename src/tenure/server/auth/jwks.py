"""Fetch and cache the key set (JWKS) that an identity provider publishes.

    first use, or older than `max_age`   fetched: the first time a caller waits for it, later in the background
    a token names an unknown key         fetched again, at most once in `min_interval`, however many such tokens come
    a fetch is under way                 one caller waits for it; others who need it are refused at once (`KeysPending`)
    a key is no longer in the set        still trusted for `overlap`, so that its last tokens can expire
    the fetch fails                      logged; the known keys stay, however old

One thread fetches, and has `timeout` seconds from the name lookup to the last byte: then a watchdog closes the
connection, so a slow provider cannot block callers any longer. Only the URL of the settings is fetched: redirects are
not followed. Answers larger than MAX_BYTES are failures.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import jwt
import msgspec

from tenure.clock import Clock, SystemClock
from tenure.errors import SettingsError, Unavailable
from tenure.server.auth.keys import Key, from_public
from tenure.server.auth.loopback import is_loopback
from tenure.telemetry import inform, warn

MAX_BYTES = 256 * 1024
MAX_KEYS = 64
#: Seconds for one whole fetch.
TIMEOUT = 5.0


class KeysPending(Unavailable):
    """The keys for this token are being fetched. Nothing was done: try again in a second."""

    retry_after = 1.0
    #: Its message may be shown to callers.
    for_callers = True

    def __init__(self) -> None:
        super().__init__("the identity provider's keys are being fetched, and it is slow to answer: try again")


class KeysMissing(Unavailable):
    """No key has been fetched yet. Nothing was done: check the identity provider, or `server.auth.jwks_url`."""

    retry_after = 5.0
    for_callers = True

    def __init__(self) -> None:
        super().__init__("the keys that tokens are verified with could not be fetched yet")


class _CachedKey(NamedTuple):
    key: Key
    #: When it left the set, by the steady clock; None while the set has it.
    gone_ms: int | None


class FetchFailed(Exception):
    """Why a key set could not be fetched. It is logged; callers never see it."""


class Jwks:
    """A keyring maintained by an identity provider."""

    def __init__(
        self,
        url: str,
        *,
        max_age: float = 300.0,
        min_interval: float = 30.0,
        overlap: float = 600.0,
        timeout: float = TIMEOUT,
        clock: Clock | None = None,
        fetch: Callable[[str], bytes] | None = None,
    ) -> None:
        """`fetch` returns the document at a URL or raises FetchFailed; default: `fetch_document`."""
        self._url = checked_url(url)
        self._max_age_ms, self._min_interval_ms, self._overlap_ms = (
            round(seconds * 1000) for seconds in (max_age, min_interval, overlap)
        )
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self._fetch = fetch or (lambda where: fetch_document(where, timeout))
        self._keys: dict[str, _CachedKey] = {}
        self._fetched_ms: int | None = None
        self._tried_ms: int | None = None
        #: Guards the fields above and the next.
        self._lock = threading.Lock()
        self._fetching = False
        self.version = 0

    def find(self, kid: str | None) -> list[Key]:
        if self._fetched_ms is None:
            raise KeysMissing
        self._drop_old_keys()
        if self._age(self._fetched_ms) > self._max_age_ms:
            self.prepare()
        held = self._keys
        if kid is None:
            # A token without `kid` is accepted only if the set has exactly one key.
            return [one.key for one in held.values()] if len(held) == 1 else []
        found = held.get(kid)
        return [found.key] if found else []

    def stale(self, kid: str | None) -> bool:
        if self._fetched_ms is not None and (kid is None or kid in self._keys):
            return False
        if self._fetching:
            raise KeysPending
        return self._may_fetch()

    def refresh(self) -> None:
        done = self._start()
        if done is not None and not done.wait(self._timeout):
            raise KeysPending

    def prepare(self) -> None:
        with contextlib.suppress(KeysPending):
            self._start()

    def _start(self) -> threading.Event | None:
        """Start a fetch in a thread; return an event that is set when it ends, or None if it is not due.

        Raises KeysPending.
        """
        with self._lock:
            if self._fetching:
                raise KeysPending
            if not self._may_fetch():
                return None
            self._fetching = True
        done = threading.Event()
        try:
            threading.Thread(target=self._run, args=(done,), name="tenure-jwks", daemon=True).start()
        except BaseException:
            self._fetching = False
            raise
        return done

    def _run(self, done: threading.Event) -> None:
        try:
            self._replace(parse(self._fetch(self._url)))
        except FetchFailed as exc:
            warn("jwks.failed", reason=str(exc), known=len(self._keys))
        finally:
            with self._lock:
                self._tried_ms = self._clock.steady_ms()
                self._fetching = False
            done.set()

    def _replace(self, keys: dict[str, Key]) -> None:
        with self._lock:
            self._keys = self._with_trusted_old_keys(keys)
            self._fetched_ms = self._clock.steady_ms()

    def _with_trusted_old_keys(self, keys: dict[str, Key]) -> dict[str, _CachedKey]:
        now = self._clock.steady_ms()
        held = {kid: _CachedKey(key, None) for kid, key in keys.items()}
        replaced = False
        for kid, one in self._keys.items():
            if kid not in held:
                held[kid] = _CachedKey(one.key, now if one.gone_ms is None else one.gone_ms)
            elif not _same(held[kid].key, one.key):
                replaced = True  # the name has a new key: the old one cannot stay
        if held.keys() != self._keys.keys() or replaced:
            inform("jwks.changed", keys=sorted(keys))
        self.version += replaced
        return held

    def _drop_old_keys(self) -> None:
        if any(self._expired(one) for one in self._keys.values()):
            with self._lock:
                self._keys = {kid: one for kid, one in self._keys.items() if not self._expired(one)}
                self.version += 1

    def _expired(self, one: _CachedKey) -> bool:
        return one.gone_ms is not None and self._age(one.gone_ms) > self._overlap_ms

    def _may_fetch(self) -> bool:
        return self._tried_ms is None or self._age(self._tried_ms) >= self._min_interval_ms

    def _age(self, since_ms: int) -> int:
        return self._clock.steady_ms() - since_ms


def checked_url(url: str) -> str:
    """Check a URL: https, or http to this machine. Raises SettingsError."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        raise SettingsError(f"server.auth.jwks_url: not a URL ({exc})") from None
    if not parts.hostname or parts.username or parts.password:
        raise SettingsError("server.auth.jwks_url: expected https://HOST/PATH, without a user")
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname)):
        return url
    raise SettingsError("server.auth.jwks_url: keys must come by https (or by http from this machine itself)")


def _same(one: Key, other: Key) -> bool:
    return one.algorithm == other.algorithm and one.material == other.material


class _Jwk(msgspec.Struct, frozen=True):
    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    crv: str | None = None
    n: str | None = None
    e: str | None = None
    x: str | None = None


class _Set(msgspec.Struct, frozen=True):
    keys: list[msgspec.Raw]


#: Created here, in one thread: msgspec crashes if two threads inspect the fields of one struct at once.
_set = msgspec.json.Decoder(_Set).decode
_jwk = msgspec.json.Decoder(_Jwk).decode


def parse(document: bytes) -> dict[str, Key]:
    """Return the signing keys by `kid`, ignoring unusable ones. Raises FetchFailed."""
    try:
        listed = _set(document).keys
    except (msgspec.DecodeError, RecursionError) as exc:
        raise FetchFailed(f"not a set of keys: {exc}") from None
    keys: dict[str, Key] = {}
    for raw in listed[:MAX_KEYS]:
        try:
            jwk = _jwk(raw)
            key = _key_of(jwk)
        except (msgspec.DecodeError, jwt.PyJWTError, SettingsError, ValueError, RecursionError):
            continue
        if key is not None:
            # Two keys under one name cannot be told apart: use the first of the document.
            keys.setdefault(jwk.kid or "", key)
    if not keys:
        raise FetchFailed("it holds no RSA or Ed25519 key for signatures")
    return keys


def _key_of(jwk: _Jwk) -> Key | None:
    if jwk.use not in (None, "sig"):
        return None
    # Only by the key's type: a published secret ("oct") is no secret, and never a key here.
    if jwk.kty == "RSA" and jwk.alg in (None, "RS256"):
        material = jwt.PyJWK({"kty": "RSA", "n": jwk.n or "", "e": jwk.e or ""}, algorithm="RS256").key
    elif jwk.kty == "OKP" and jwk.crv == "Ed25519" and jwk.alg in (None, "EdDSA", "Ed25519"):
        material = jwt.PyJWK({"kty": "OKP", "crv": "Ed25519", "x": jwk.x or ""}, algorithm="EdDSA").key
    else:
        return None
    return from_public(material, "jwks")


def fetch_document(url: str, timeout: float = TIMEOUT) -> bytes:
    """Return the bytes at a URL, within `timeout` seconds in total. Raises FetchFailed."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            host, parts.port, timeout=timeout, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout)
    late = threading.Event()
    connected: list[socket.socket] = []  # http.client forgets its socket once it has read the answer's head

    def give_up() -> None:
        late.set()
        for sock in connected:
            with contextlib.suppress(OSError):  # already closed
                sock.shutdown(socket.SHUT_RDWR)

    watchdog = threading.Timer(timeout, give_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        connection.connect()  # within the socket's own timeout, as is the TLS handshake
        connected.append(connection.sock)
        if late.is_set():
            raise FetchFailed(f"{host}: not done within {timeout:g} s")
        connection.request("GET", path, headers={"Accept": "application/jwk-set+json, application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise FetchFailed(f"{host} answered {answer.status}")
        body = _body(answer)
    except (OSError, ValueError, http.client.HTTPException) as exc:
        if late.is_set():
            raise FetchFailed(f"{host}: not done within {timeout:g} s") from None
        raise FetchFailed(f"{host}: {type(exc).__name__}: {exc}") from None
    finally:
        watchdog.cancel()
        connection.close()
    if late.is_set():
        raise FetchFailed(f"{host}: not done within {timeout:g} s")
    return body


def _body(answer: http.client.HTTPResponse) -> bytes:
    body = bytearray()
    while chunk := answer.read1(64 * 1024):
        body += chunk
        if len(body) > MAX_BYTES:
            raise FetchFailed(f"more than {MAX_BYTES:,} bytes")
    return bytes(body)
