"""FoundationDB: any number of hosts share one store; the cluster orders their transactions.

    engine.py        FoundationEngine: the retry loop, unknown commits, watches
    transaction.py   a transaction: read conflicts, leases held by version, the rows claims choose from; its commit
    early_values.py  large values, written in transactions of their own before the one that refers to them
    rows.py          reading: counters, values in parts, the journal with rows that are not folded yet
    journal.py       the journal: appended at version stamps without conflict, folded into dense rows later
    snapshot.py      one version for a short read, a copy in memory for a long one
    layout.py        every key: a directory for each store, a prefix for each space
    binding.py       loads the `fdb` module and translates its errors

How this engine uses FoundationDB (docs/foundationdb.md, ADR 0033):
- Transactions are optimistic: one runs again if another wrote rows that it read. Claims read the queue's front without
  conflict, choose at random under contention, and conflict only on the jobs they take.
- The outcome of a commit may be unknown. Every transaction writes a mark under a number chosen before its first try,
  and reads it in every try: a try that finds the mark knows that an earlier one committed, and returns its result.
- A version can be read for five seconds, a value has at most 100,000 bytes, a transaction 10 MB.
- The hosts' clocks differ. An expired lease is taken over only after its end and the grace period, and after the
  cluster has advanced by as many versions as the lease's duration stands for.
"""

from tenure.storage.engines.foundationdb.engine import FoundationEngine

__all__ = ["FoundationEngine"]
