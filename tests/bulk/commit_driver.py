"""Commits a staged write with a quarantine, under one id. A test kills it, and runs it again.

python commit_driver.py URL WRITE QUARANTINE MANIFEST
"""

from __future__ import annotations

import sys

import tenure
from tenure.bulk.publisher import Terms, commit
from tenure.bulk.staging import Manifest


def main(url: str, write_id: str, quarantine: str, manifest: str) -> None:
    with tenure.open(url, sweep=False, durability="os") as store:
        print("open", flush=True)
        commit(store, write_id, Manifest.decode(bytes.fromhex(manifest)), Terms(quarantine=quarantine))
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
