"""Build the authenticator from settings.

Settings that cannot be secure raise an error, and the server does not start.
"""

from __future__ import annotations

from tenure.clock import Clock
from tenure.errors import SettingsError
from tenure.server.auth.authenticator import Authenticator
from tenure.server.auth.claims import Rules
from tenure.server_settings import Auth

SOURCES = ("secret", "secret_file", "key_file", "jwks_url")


def rules_of(auth: Auth) -> Rules:
    return Rules(auth.issuer, auth.audience, auth.tenant_claim, auth.leeway)


def authenticator(auth: Auth, clock: Clock | None = None) -> Authenticator | None:
    """Return the authenticator for these settings; None if they configure none. Raises SettingsError."""
    given = [f"server.auth.{name}" for name in SOURCES if getattr(auth, name)]
    if not given:
        return None
    if len(given) > 1:
        raise SettingsError(f"{' and '.join(given)} are set: tokens are verified by one of them, take the others out")
    from tenure.server.auth import keys  # needs the extra: import it only when configured
    from tenure.server.auth.tokens import TokenAuthenticator

    keyring: keys.Keyring
    if auth.secret:
        secrets = keys.split_secrets(auth.secret.reveal().encode())
        keyring = keys.FixedKeys([keys.from_secret(one, given[0]) for one in secrets])
    elif auth.secret_file:
        secrets = keys.secrets_from_file(auth.secret_file, given[0])
        keyring = keys.FixedKeys([keys.from_secret(one, given[0]) for one in secrets])
    elif auth.key_file:
        pems = keys.split_pem(keys.read_file(auth.key_file, given[0]))
        keyring = keys.FixedKeys([keys.from_pem(one, given[0]) for one in pems])
    else:
        from tenure.server.auth.jwks import Jwks

        assert auth.jwks_url is not None
        keyring = Jwks(
            auth.jwks_url,
            max_age=auth.jwks_max_age,
            min_interval=auth.jwks_min_interval,
            overlap=auth.jwks_overlap,
            clock=clock,
        )
    return TokenAuthenticator(keyring, rules_of(auth), clock)
