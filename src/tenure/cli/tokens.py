"""token: make access tokens for development, from the server's own settings."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tenure.cli.command import command
from tenure.cli.session import Session
from tenure.cli.times import DURATION, now_ms
from tenure.errors import InvalidArgument, SettingsError
from tenure.extras import needs
from tenure.model.names import checked
from tenure.server_settings import Auth

_SCOPES = ("produce", "consume", "admin", "operator")


@command(
    "token",
    examples=(
        ("A secret for your own server, once:", "tenure token --new-secret > secret"),
        (
            "A token for tenant acme, signed with that secret:",
            "tenure token --tenant acme --key-file secret --lifetime 8h",
        ),
        ("A token that only enqueues, into one queue:", "tenure token --scope produce --queue emails"),
        ("A token for all tenants:", "tenure token --scope operator --subject ops"),
    ),
    short_help="Make an access token, for development.",
)
@click.option("--subject", default="developer", show_default=True, metavar="NAME", help="Who it is for.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(_SCOPES),
    multiple=True,
    help="What it allows; may be repeated. Without: produce, consume and admin.",
)
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only for this queue; may be repeated.")
@click.option("--lifetime", type=DURATION, default=3600.0, show_default="1h", help="How long it is good for.")
@click.option(
    "--key-file", metavar="FILE", help="Sign with this secret or private key (else with the server's secret)."
)
@click.option("--new-secret", is_flag=True, help="Print a new random secret instead, to be kept in a file.")
def token(
    session: Session,
    subject: str,
    scopes: Sequence[str],
    queues: Sequence[str],
    lifetime: float,
    key_file: str | None,
    new_secret: bool,
) -> None:
    """Issue an access token, with the issuer, audience and tenant claim from this machine's server settings.

    For development: in production an identity provider issues tokens. The bearer may do what the token allows until it
    expires; Tenure prints it and keeps no copy.
    """
    with needs("server", "tenure token"):
        from tenure.server.auth import issue
        from tenure.server.auth.configuration import rules_of

    if new_secret:
        secret = issue.new_secret()
        session.out.emit({"secret": secret}) if session.json else click.echo(secret)
        return
    if not 1 <= lifetime <= 366 * 86_400:
        raise InvalidArgument("--lifetime: from a second to a year")
    auth = session.settings.server.auth
    made = issue.mint(
        _key(auth, key_file),
        rules_of(auth),
        subject=subject,
        tenant=None if session.given_tenant is None and "operator" in scopes else checked("tenant", session.tenant),
        scopes=scopes or ("produce", "consume", "admin"),
        queues=[checked("queue", queue) for queue in queues] or None,
        now=now_ms() / 1000,
        lifetime=lifetime,
    )
    session.out.emit({"token": made}) if session.json else click.echo(made)


def _key(auth: Auth, key_file: str | None) -> bytes:
    """Return the key to sign with: the first, if there are several."""
    from tenure.server.auth.keys import secrets_from_file, split_secrets

    if key_file is not None:
        return secrets_from_file(key_file, "--key-file")[0]
    if auth.secret:
        return split_secrets(auth.secret.reveal().encode())[0]
    if auth.secret_file:
        return secrets_from_file(auth.secret_file, "server.auth.secret_file")[0]
    raise SettingsError(
        "nothing to sign with: name a secret or private key by --key-file, or set server.auth.secret_file."
        " A new secret: tenure token --new-secret > secret"
    )
