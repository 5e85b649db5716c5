"""serve: a store behind HTTP."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

import tenure
from tenure.cli.command import command
from tenure.cli.progress import working
from tenure.cli.session import Session
from tenure.extras import needs
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
    short_help="Put a store behind HTTP.",
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
    help="How many verbs run at once; waiting claims need none.",
)
@click.option("--tls-cert", metavar="FILE", help="Speak https, with this certificate and its chain (PEM).")
@click.option("--tls-key", metavar="FILE", help="The certificate's private key (PEM).")
@click.option("--capnp", metavar="HOST:PORT", help="Also speak Cap'n Proto RPC there (docs/capnp.md).")
def serve(
    session: Session, bind: str, threads: int, tls_cert: str | None, tls_key: str | None, capnp: str | None
) -> None:
    """Put a store behind HTTP, for many processes, machines and tenants; the protocol is in docs/protocol.md.

    Without authentication (settings server.auth.*) it takes everyone who can reach it for the operator, and therefore
    listens to this machine only. SIGTERM and Ctrl-C end it: nothing more is accepted, waiting claims are answered, requests
    under way finish.
    """
    with needs("server", "The server"):
        from tenure.server.service import Service, known_by, listening, parse_bind

    settings = session.settings
    served = settings.server
    if tls_cert or tls_key:
        served = replace(served, tls=Tls(cert=tls_cert or served.tls.cert, key=tls_key or served.tls.key))
    level = "info" if served.log_requests and settings.log.level == "warning" else settings.log.level
    configure_logging("debug" if session.debug else level, "json" if session.json else settings.log.format)
    place, door = parse_bind(bind), parse_bind(capnp) if capnp else None
    url = session.address()
    # Whatever may be refused is, before a store is made or opened; who connects while it opens waits.
    known_by(served, place, door)
    with listening(place) as sock:
        with working(f"Opening {without_password(url)}"):
            store = tenure.open(url, config=session.config)
        with store:
            if not place.path:
                place = place._replace(port=sock.getsockname()[1])
            service = Service(store, place, served, threads=threads, capnp=door)
            _announce(session, service, store.url, place.url(service.tls), capnp)
            service.run(sock)


def _announce(session: Session, service: Service, store: str, address: str, capnp: str | None) -> None:
    """To a person, or as a line of the log where that is for programs."""
    style = settings_format(session)
    if style == "json":
        inform("serving", address=address, store=store, capnp=capnp, authentication=not service.open_to_all)
        return
    if service.open_to_all:
        session.out.note(
            "No authentication is configured: whoever reaches this address from this machine may do everything."
        )
    if capnp:
        session.out.note(f"Speaking Cap'n Proto on {capnp}.")
    session.out.note(f"Serving {store} on {address}. Ctrl-C ends it.")


def settings_format(session: Session) -> str:
    """How the log is written: console or json."""
    style = session.settings.log.format
    if session.json or style == "json":
        return "json"
    return "console" if style == "console" or sys.stderr.isatty() else "json"
