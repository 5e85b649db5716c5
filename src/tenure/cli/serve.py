"""serve: serve a store over HTTP."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

import tenure
from tenure.cli.command import command
from tenure.cli.progress import progress_bar
from tenure.cli.session import Session
from tenure.errors import SettingsError
from tenure.extras import require
from tenure.server_settings import Tls
from tenure.settings import without_password
from tenure.telemetry import configure_logging, inform

if TYPE_CHECKING:
    from tenure.server.service import Service


@command(
    "serve",
    examples=(
        ("A server for this machine:", "tenure serve --store rocksdb:./data --bind localhost:8400"),
        ("By a Unix socket:", "tenure serve --bind unix:./tenure.sock"),
        ("Use it:", "tenure queues --store http://localhost:8400"),
        (
            "For other machines, with tokens:",
            "TENURE_SERVER_AUTH_SECRET_FILE=secret tenure serve --bind 0.0.0.0:8400",
        ),
    ),
    short_help="Serve a store over HTTP.",
)
@click.option(
    "--bind",
    default="localhost:8400",
    show_default=True,
    metavar="HOST:PORT|unix:PATH",
    help="Where to listen.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    help="How many verbs run at once; a waiting claim holds no thread.",
)
@click.option("--tls-cert", metavar="FILE", help="Speak https, with this certificate and its chain (PEM).")
@click.option("--tls-key", metavar="FILE", help="The certificate's private key (PEM).")
@click.option("--capnp", metavar="HOST:PORT", help="Also speak Cap'n Proto RPC there (docs/capnp.md).")
def serve(
    session: Session, bind: str, threads: int, tls_cert: str | None, tls_key: str | None, capnp: str | None
) -> None:
    """Serve a store over HTTP, for many processes, machines and tenants; the protocol is in docs/protocol.md.

    Without authentication (settings server.auth.*) every caller is the operator, so the server listens on this machine
    only. SIGTERM and Ctrl-C end it: it accepts no more connections, answers waiting claims, and finishes requests.
    """
    # Service imports these itself, but only once it has a store: a missing package must not leave one open.
    require("server", "tenure serve", "uvicorn", "tenure.server.application", "tenure.server.http_protocol")
    from tenure.server.service import Service, configured_authenticator, listening, metrics_place, parse_bind

    settings = session.settings
    served = settings.server
    if tls_cert or tls_key:
        served = replace(served, tls=Tls(cert=tls_cert or served.tls.cert, key=tls_key or served.tls.key))
    level = "info" if served.log_requests and settings.log.level == "warning" else settings.log.level
    configure_logging("debug" if session.debug else level, "json" if session.json else settings.log.format)
    place, capnp_place = parse_bind(bind), parse_bind(capnp) if capnp else None
    if capnp_place is not None:
        if capnp_place.path:
            raise SettingsError("--capnp takes HOST:PORT")
        require("capnp", "tenure serve --capnp", "tenure.server.capnp.service")
    url = session.address()
    # Report errors before a store is created or opened. Callers that connect while it opens wait.
    configured_authenticator(served, place, capnp_place)
    metrics_at = metrics_place(served)
    with (
        listening(place) as sock,
        nullcontext() if capnp_place is None else listening(capnp_place, "--capnp") as capnp_sock,
        nullcontext() if metrics_at is None else listening(metrics_at, "server.metrics_bind") as metrics_sock,
    ):
        with progress_bar(f"Opening {without_password(url)}"):
            store = tenure.open(url, config=session.config)
        with store:
            if not place.path:
                place = place._replace(port=sock.getsockname()[1])
            service = Service(store, place, served, threads=threads, capnp=capnp_sock, metrics=metrics_sock)
            _announce(session, service, store.url, place.url(service.tls), capnp)
            service.run(sock)


def _announce(session: Session, service: Service, store: str, address: str, capnp: str | None) -> None:
    """Print the address: in words, or as a log line if logs are JSON."""
    style = settings_format(session)
    if style == "json":
        inform("serving", address=address, store=store, capnp=capnp, authentication=not service.open_to_all)
        return
    if service.open_to_all:
        session.out.note(
            "No authentication is configured: every process of this machine that reaches the address may do everything."
        )
    if capnp:
        session.out.note(f"Speaking Cap'n Proto on {capnp}.")
    session.out.note(f"Serving {store} on {address}. Ctrl-C ends it.")


def settings_format(session: Session) -> str:
    """Return the format of the log: console or json."""
    style = session.settings.log.format
    if session.json or style == "json":
        return "json"
    return "console" if style == "console" or sys.stderr.isatty() else "json"
