"""A report every weekday at seven, Berlin time: once, however many workers run, also on the days the clocks change.

python examples/report.py                simulate a week with a fast clock
tenure worker examples/report.py      in production, as many of them as you like
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from tenure import App, ManualClock, current_job
from tenure.testing.bench import Bench

app = App("rocksdb:./data")


@app.periodic("0 7 * * mon-fri", tz="Europe/Berlin", missed="catch_up", queue="reports")
def report() -> str:
    """Report on yesterday. `tick` is when it was due, not when it ran: a late run reports on the right day."""
    tick = current_job().tick
    assert tick is not None
    return f"report for {tick - timedelta(days=1):%A %d %B}, due {tick:%H:%M %Z}"


@app.periodic("*/30 * * * *", args={"kind": "queue"})
@app.periodic("0 * * * *", args={"kind": "disk"})
@app.task(queue="reports", ttl=600)
def check(kind: str) -> str:
    """Run a check. The ttl drops one that was not started within ten minutes."""
    return f"{kind} is fine"


def main() -> int:
    friday = datetime(2026, 10, 23, 12, tzinfo=ZoneInfo("Europe/Berlin"))  # clocks go back on the Sunday
    with Bench(app, ManualClock(round(friday.timestamp() * 1000))) as bench:
        reports, checks = [], 0
        for _ in range(7 * 48):
            bench.advance(1800)
            for ran in bench.drain():
                if ran.task == report.name:
                    reports.append(ran.result)
                else:
                    checks += 1
        print("\n".join(reports))
        print(f"and {checks} checks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
