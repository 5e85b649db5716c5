"""Cap'n Proto RPC for clients in other languages: the same operations as HTTP (docs/capnp.md).

It has no logic of its own: a call becomes the request that HTTP would have sent, with the same tokens, scopes, limits
and waiting. Needs the extra `capnp`.
"""
