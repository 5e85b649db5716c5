"""dashboard: a server's pages for a store on this machine."""

from __future__ import annotations

import click
from msgspec.structs import replace

from tenure.cli.command import command
from tenure.cli.session import Session
from tenure.errors import SettingsError
from tenure.extras import require
from tenure.server_settings import Auth
from tenure.telemetry import configure_logging


@command(
    "dashboard",
    examples=(
        ("Look at a store, also while others work with it:", "tenure dashboard --store rocksdb:./data"),
        ("At another port:", "tenure dashboard --bind localhost:9000"),
    ),
    short_help="Show a store in a browser.",
)
@click.option(
    "--bind",
    default="localhost:8401",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen, on this machine only (port 0: any that is free).",
)
def dashboard(session: Session, bind: str) -> None:
    """Show queues, jobs, dead letters and workers of a store in a browser, at the printed address, until Ctrl-C.

    A store that another process owns is joined through the owner's socket; a server shows its store itself, at its own
    address. Everyone who reaches the address may do everything, so it listens on this machine only.
    """
    require("server", "tenure dashboard", "uvicorn", "tenure.server.application", "tenure.server.http_protocol")
    from tenure.server.service import Service, listening, parse_bind

    settings = session.settings
    configure_logging("debug" if session.debug else settings.log.level, "json" if session.json else settings.log.format)
    place = parse_bind(bind)
    if place.path or not place.loopback:
        raise SettingsError(
            f"{bind}: the dashboard of a store takes HOST:PORT of this machine; tenure serve takes others"
        )
    served = replace(settings.server, auth=Auth())
    with listening(place) as sock, session.store() as store:
        place = place._replace(port=sock.getsockname()[1])
        service = Service(store, place, served)
        if session.json:
            session.out.emit({"address": place.url(), "store": store.url})
            session.out.flush()
        session.out.note(f"Showing {store.url} at {place.url()}. Ctrl-C ends it.")
        service.run(sock)
