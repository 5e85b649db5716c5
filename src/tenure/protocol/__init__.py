"""Code shared by client and server: operations, messages, formats and errors (docs/protocol.md).

messages     requests and replies, as structs   problems    errors as problem details, and back
operations   the table of operations            formats     JSON and MessagePack
identity     a caller and its scopes            dispatcher  carries an operation out on a backend
"""
