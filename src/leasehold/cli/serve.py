"""serve: a store behind HTTP."""

from __future__ import annotations

import click

import leasehold
from leasehold.cli.frame import command
from leasehold.cli.session import Session
from leasehold.cli.working import working
from leasehold.extras import needs
from leasehold.stores.telemetry import configure_logging


@command(
    "serve",
    examples=(
        ("A server for this machine:", "leasehold serve --store rocksdb:./data --bind localhost:8400"),
        ("By a Unix socket:", "leasehold serve --bind unix:./leasehold.sock"),
        ("Use it:", "leasehold queues --store http://localhost:8400"),
        (
            "For other machines, with tokens:",
            "LEASEHOLD_SERVER_AUTH_SECRET_FILE=secret leasehold serve --bind 0.0.0.0:8400",
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
def serve(session: Session, bind: str, threads: int) -> None:
    """Put a store behind HTTP, for many processes, machines and tenants; the protocol is in docs/protocol.md.

    Without authentication (settings server.auth.*) it takes everyone who can reach it for the operator, and therefore
    listens to this machine only. SIGTERM and Ctrl-C end it: nothing more is accepted, waiting claims are answered, requests
    under way finish.
    """
    with needs("server", "The server"):
        from leasehold.server.running import Service, listening, parse_bind

    settings = session.settings
    configure_logging("debug" if session.debug else settings.log.level, "json" if session.json else settings.log.format)
    place = parse_bind(bind)
    url = session.address()
    with working(f"Opening {url}"):
        store = leasehold.open(url, config=session.config)
    with store, listening(place) as sock:
        if not place.path:
            place = place._replace(port=sock.getsockname()[1])
        service = Service(store, place, settings.server, threads=threads)
        if service.open_to_all:
            session.out.note(
                "No authentication is configured: whoever reaches this address from this machine may do everything."
            )
        session.out.note(f"Serving {store.url} ({store.durability}) on {place.url(service.tls)}. Ctrl-C ends it.")
        service.run(sock)
