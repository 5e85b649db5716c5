"""Authentication: from a request's headers to an Identity, or to a refusal.

    Authorization: Bearer TOKEN ──▶ tokens ──▶ signature (keys, jwks) ──▶ claims ──▶ Identity

A refusal is `Unauthenticated` (401) or `Forbidden` (403); `Unavailable` (503) if no key could be fetched. No message
and no log line contains a token, a part of one, or a key.
"""

from tenure.server.auth.authenticator import Authenticator
from tenure.server.auth.loopback import LoopbackAuthenticator

__all__ = ["Authenticator", "LoopbackAuthenticator"]
