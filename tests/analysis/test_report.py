"""The report without Java: its page, what its charts show, and the numbers under them."""

from __future__ import annotations

import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

import tenure
from tenure import Backoff, ManualClock, Policy, bulk
from tenure.analysis.history_folder import Entry
from tenure.analysis.report import charts, job
from tenure.analysis.report.facts import Series
from tenure.analysis.report.formatting import DAY, HOUR, MINUTE, rate, span, span_steps, ticks
from tenure.analysis.report.gathering import Gathering
from tenure.analysis.report.history import from_events
from tenure.analysis.report.page import _meter, page
from tenure.analysis.sql import local_sql
from tenure.analysis.summary import quietly
from tenure.errors import InvalidArgument
from tests.spark.made import a_store, all_events, live

MIDNIGHT = 1_800_057_600_000  # 2027-01-16, in UTC


class Page(HTMLParser):
    """Its open tags, and everything that would ask the network for something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asks: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.asks += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "action", "data")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_store_that_is_not_open_is_drawn_as_one_page(tmp_path: Path) -> None:
    clock = ManualClock()
    url, target = f"rocksdb:{tmp_path / 'data'}", tmp_path / "report.html"
    with tenure.open(url, clock=clock, sweep=False, durability="os") as store:
        live(store, clock, rounds=60)
    summary = job.report(url, str(target), title="A <week> of it")
    text = target.read_text()
    made = Page()
    made.feed(text)
    assert (made.open, made.asks) == ([], [])
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp", text)
    for part in (
        "A &lt;week&gt; of it", "default/emails", "acme/emails", "MailboxFull", "jobs per second", "Workers", "w1",
        "last error", "Percentiles are exact", "from its journal",
    ):  # fmt: skip
        assert part in text, part
    assert "DOES NOT ADD UP" not in text
    assert summary.read > 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "report.html"], "no draft is left"


def test_a_history_in_two_runs_is_the_store_it_tells_of(tmp_path: Path) -> None:
    store, _ = a_store(rounds=40)
    with store:
        events = bulk.read(store, "events")
        whole = asdict(job.facts_of(store))
    half = events.num_rows // 2
    for number, part in enumerate((events.slice(0, half), events.slice(half)), 1):
        place = f"bronze/run={number}/attempt"
        (tmp_path / place).mkdir(parents=True)
        pq.write_table(part, tmp_path / place / "part-00000.parquet")
        entry = Entry(
            number=number, store=whole["store"], start={"0": 0}, end={"0": 1}, last_number={"0": 1}, start_ms=None, end_ms=1,
            tables={"bronze": place}, rows={"bronze": part.num_rows}, paused={}, slo=60.0,
        )  # fmt: skip
        (tmp_path / "_log").mkdir(exist_ok=True)
        (tmp_path / "_log" / f"{number:012}.json").write_bytes(msgspec.json.encode(entry))
    told = asdict(job.facts_of(str(tmp_path)))
    assert told == {**whole, "source": "in 2 runs"}
    with pytest.raises(InvalidArgument, match="SLO of 60 s"):
        job.facts_of(str(tmp_path), slo=5)


def test_nothing_happened(tmp_path: Path) -> None:
    with tenure.open("memory:", sweep=False) as store, pytest.raises(InvalidArgument, match="nothing happened"):
        job.report(store, str(tmp_path / "r.html"))


def facts_of(store: Any, **which: Any) -> Any:
    events = bulk.read(store, "events", **which)
    end_ms = round(events.column("time")[-1].as_py().timestamp() * 1000)
    with local_sql() as sql:
        kept = sql.keep("events", "SELECT * FROM {events}", events=events)
        history = from_events(sql, kept, store="memory:", source="from its journal", slo=60, end_ms=end_ms)
        return Gathering(sql, history, quietly).facts("t")


def test_stocks_end_with_what_is_there() -> None:
    store, _ = a_store(rounds=80, seed=4)
    with store:
        facts = facts_of(store)
        counts = [info.counts for info in store.queues()]
        claims = sum(event.type == "claimed" for event in all_events(store))
    stocks = {series.name: series.values[-1] for series in facts.stocks}
    assert stocks["waiting"] == sum(c.ready + c.scheduled for c in counts)
    assert stocks["dead"] == sum(c.dead for c in counts)
    assert facts.totals.waiting == stocks["waiting"]
    assert sum(row.deliveries for row in facts.workers) == claims - sum(c.leased for c in counts), "those that ended"
    assert {row.worker for row in facts.workers} == {"", "w1", "w2"}


def test_dead_jobs_that_left_before_the_journal_begins_are_not_drawn() -> None:
    """A journal that was trimmed sees dead jobs purged that it never saw die."""
    clock = ManualClock()
    with tenure.open("memory:", clock=clock, sweep=False) as store:
        queue = store.queue("q")
        queue.configure(Policy(max_attempts=1, backoff=Backoff.fixed(0)))
        queue.enqueue_many([b"x"] * 20)
        for delivery in queue.claim(limit=20):
            queue.fail(delivery, error="E: x")
        clock.advance(10)
        since = clock.wall_ms() / 1000
        queue.replay(limit=5)
        queue.purge("dead")
        clock.advance(5)
        queue.enqueue(b"y")
        facts = facts_of(store, since=since)
    dead = next(series for series in facts.stocks if series.name == "dead")
    assert set(dead.values) == {0.0}


def test_a_stock_that_is_nothing_is_not_outlined() -> None:
    times = [MIDNIGHT + n * HOUR for n in range(6)]
    waiting = Series("waiting", [5, 4, 3, 2, 1, 1], "blue")
    none = charts.areas(times, HOUR, [waiting, Series("dead", [0.0] * 6, "red")])
    assert "area red" not in none
    assert "line" not in re.findall(r'class="(\w+) (?:red|blue)"', none)
    some = charts.areas(times, HOUR, [waiting, Series("dead", [0, 0, 0, 2, 0, 0], "red")])
    (shape,) = re.findall(r'class="area red" points="([^"]+)"', some)
    assert len(shape.split()) == 6, "one step, and the empty ones beside it"


def test_axes_say_the_date() -> None:
    day = [label for _, label in ticks(MIDNIGHT - 3 * HOUR, MIDNIGHT + 9 * HOUR, 6)]
    assert day == ["15 Jan 22:00", "16 Jan", "02:00", "04:00", "06:00", "08:00"]
    week = [label for _, label in ticks(MIDNIGHT - 3 * DAY - HOUR, MIDNIGHT + 3 * DAY)]
    assert week == ["13 Jan", "14 Jan", "15 Jan", "16 Jan", "17 Jan", "18 Jan", "19 Jan"]
    assert len(ticks(MIDNIGHT, MIDNIGHT + 400 * DAY, 6)) <= 7


@pytest.mark.parametrize(
    ("ms", "said"),
    [(8 * HOUR + 59 * MINUTE + 40_000, "9 h"), (59_900, "60 s"), (23 * HOUR + 59 * MINUTE + 50_000, "1 d"), (90_000, "1 m 30 s")],
)  # fmt: skip
def test_spans_are_rounded_whole(ms: int, said: str) -> None:
    assert span(ms) == said


def test_labels_of_a_scale_do_not_collide() -> None:
    for high in (2, 60, 5_000, 400_000, 20_000_000, 90_000_000):
        steps = span_steps(1, high)
        assert len(steps) <= 7
        assert steps[-1] >= high or high > 2_000_000_000


def test_rates_are_per_second() -> None:
    assert [rate(value) for value in (0, 0.0123, 1.25, 42.0, 1234.0)] == ["0", "0.012", "1.2", "42", "1,234"]


def test_a_meter_is_good_only_when_nearly_all_are_in_time() -> None:
    assert [re.findall(r'"meter (\w+)"', _meter(value))[0] for value in (0.58, 0.95, 0.995)] == ["bad", "fair", "good"]
    assert "meter" not in _meter(None)


def test_a_heat_map_has_a_scale_and_names_are_escaped() -> None:
    drawn = charts.heat([MIDNIGHT, MIDNIGHT + HOUR], HOUR, [("<b>/q", [5.0, 60_000.0])])
    assert "<b>/q" not in drawn
    assert drawn.count('class="swatch"') > 2
    assert "5 ms" in drawn


def test_errors_stand_beside_slow_jobs() -> None:
    store, _ = a_store(rounds=60)
    with store:
        facts = facts_of(store)
    assert any(slow.error and slow.outcome == "done" for slow in facts.slowest)
    assert 'class="error"' in page(facts)
