"""A store behind HTTP: one protocol, for the server, the owner's socket and the client alike (docs/protocol.md).

messages     what travels, as structs          faults      errors as problem details, and back
operations   the one table of operations       formats     JSON and MessagePack
identity     who asks, and what they may       host        carries an operation out on a backend
listener     a small HTTP/1.1 server           transport   a small HTTP/1.1 client
client       the contract, over the transport
"""
