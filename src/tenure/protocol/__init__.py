"""What client and server share: operations, messages, formats and errors (docs/protocol.md).

messages     what travels, as structs          problems    errors as problem details, and back
operations   the one table of operations       formats     JSON and MessagePack
identity     a caller, and its scopes           dispatcher  carries an operation out on a backend
"""
