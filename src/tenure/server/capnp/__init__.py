"""For clients in other languages: Cap'n Proto RPC over the same operations as HTTP (docs/capnp.md).

It has no logic of its own: a call becomes the request that HTTP would have sent, and goes the same way through tokens,
scopes, limits and waiting. Needs the extra `capnp`.
"""
