"""FoundationDB: any number of hosts on one store, in a cluster that orders their transactions.

    engine.py       FoundationEngine: the retry loop, unknown commits, watches
    transaction.py  a transaction: guards, leases held by version, how widely a claim chooses; and how it is applied
    rows.py         reading: counters, values in parts, the journal with what is not folded in yet
    journal.py      the journal: appended at version stamps without conflict, folded into dense rows later
    snapshot.py     one version for a short look, a copy in memory for a long one
    layout.py       every key: a directory a store, a prefix a space
    binding.py      the `fdb` module, loaded; its errors become ours

What is special about FoundationDB, and what is made of it here (docs/foundationdb.md, ADR 0033):
- Transactions are optimistic: they run again when another wrote what they read. Claims read the queue's head without
  conflict, choose at random when others are about, and conflict only on the jobs they take.
- A commit's outcome may be unknown. Every transaction writes a mark under a number chosen before its first try, and
  reads it in every try: a try that finds the mark knows that an earlier one committed, and returns its result.
- A version can be read for five seconds, a value has 100,000 bytes, a transaction 10 MB.
- Hosts' clocks differ. An expired lease is taken over only when its time and the grace have passed, and as many
  versions of the cluster as the lease was long.
"""

from tenure.storage.engines.foundationdb.engine import FoundationEngine

__all__ = ["FoundationEngine"]
