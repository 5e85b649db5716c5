"""The store on Redis and Valkey: one Lua function a verb, on one server, behind Sentinel, or on a cluster.

address     what a URL says                     library     the Lua, joined, named by its version
wire        connections, retries, errors        lanes       requests that may be sent again
shards      queues and their partitions         records     bytes as Lua and clients write them
listening   who waits, and what wakes them      opening     what a server must be
produce consume look mend history checking      the verbs
backend     the contract, on all of these
"""
