"""The server's settings, which `settings.py` reads.

A `Secret` never shows its text: not in a repr, a log line, an error or a traceback.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(gt=0, le=86_400, extra={"seconds": True})]
Leeway = Annotated[float, Meta(ge=0, le=60, extra={"seconds": True})]
Text = Annotated[str, Meta(min_length=1)]
Size = Annotated[int, Meta(ge=1024, le=2**40, extra={"size": True})]
Number = Annotated[int, Meta(ge=1, le=1_000_000, extra={"number": True})]


class Secret:
    """Text that must not be shown. Falsy if no secret is set."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(...)" if self._text else "Secret()"


class Auth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Authentication of callers. Set at most one of `secret`, `secret_file`, `key_file` and `jwks_url`.

    With none of them, the server listens on this host only.
    """

    #: Secrets for HS256, at least 32 bytes each, one per line: the first signs, all verify.
    secret: Secret = Secret()
    #: A file that holds such secrets.
    secret_file: Text | None = None
    #: Public keys in PEM: an RSA key verifies RS256, an Ed25519 key EdDSA.
    key_file: Text | None = None
    #: The https URL of an identity provider's key set.
    jwks_url: Text | None = None
    #: Seconds until the server fetches the key set again.
    jwks_max_age: Seconds = 300.0
    #: Seconds for which a key stays trusted after it left the key set.
    jwks_overlap: Seconds = 600.0
    #: The least seconds between two fetches, even if tokens name unknown keys.
    jwks_min_interval: Seconds = 30.0
    issuer: Text = "tenure"
    audience: Text = "tenure"
    #: The token's claim that names the tenant.
    tenant_claim: Text = "tenant"
    #: Seconds by which clocks may differ.
    leeway: Leeway = 5.0


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for one request. A request beyond one of them is refused and changes nothing."""

    #: Bytes of a request's body, as sent.
    body: Size = 64 * 1024**2
    #: Bytes of a compressed body after decompression.
    inflated: Size = 64 * 1024**2
    #: Bytes of the request line and headers.
    head: Size = 32 * 1024
    #: Jobs to enqueue, receipts to settle or ids in one request.
    batch: Number = 10_000
    #: Jobs in one claim.
    claim: Number = 10_000
    #: The longest lease, in seconds.
    lease: Seconds = 86_400.0
    #: The longest wait, in seconds. A caller that asks for more is answered then, and may ask again.
    wait: Seconds = 60.0
    #: Bytes of payloads in one claim; further jobs are left for the next claim.
    answer: Size = 32 * 1024**2
    #: Bytes of the bodies of all requests being read or carried out.
    bodies: Size = 512 * 1024**2
    #: Free disk space reserved for the store's own work; at most a twentieth of the disk.
    free: Size = 256 * 1024**2
    #: Seconds for a connection to send a request's head, and the longest pause within a body or an answer.
    idle: Seconds = 30.0
    #: Connections at once. 0, and the upper bound: three quarters of the process's file descriptor limit.
    connections: Annotated[int, Meta(ge=0, le=1_000_000, extra={"number": True})] = 0


class Tls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: The certificate with its chain, in PEM. Requires `key`.
    cert: Text | None = None
    #: The certificate's private key, in PEM.
    key: Text | None = None


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    auth: Auth = Auth()
    limits: Limits = Limits()
    tls: Tls = Tls()
    #: Log one line for every request: caller, operation and outcome.
    log_requests: bool = True
    #: Serve /metrics without authentication, not only to operators.
    open_metrics: bool = False
    #: A second address that serves /metrics without authentication: HOST:PORT.
    metrics_bind: Text | None = None
