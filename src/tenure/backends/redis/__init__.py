"""The store on Redis and Valkey: each verb is one Lua function, on one server, behind Sentinel, or on a cluster.

address         the parts of a URL                     topology        which server has a key
opening         requirements on a server               packer          requests as bytes
commands        requests, retries, the driver's errors request_lanes   requests that may be sent again
library         the Lua files joined and named         constants       values shared by Python and Lua
records         bytes that Lua and clients write       cursor_seal     cursors that only the store can read
shards          queues and their partitions            filters         Bloom filters of this process
notifications   waiters, and what wakes them           watch_source    the same for a server's callers
produce consume claim_any queries admin journal restore check    the verbs
core            what every verb needs                  backend         the contract, on all of these
"""
