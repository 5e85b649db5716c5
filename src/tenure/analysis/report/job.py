"""`report` without Spark: a store's journal, or a history's folder, as one HTML file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tenure import bulk
from tenure.analysis.history_folder import HistoryFolder
from tenure.analysis.object_root import SCHEMES
from tenure.analysis.report.facts import Facts
from tenure.analysis.report.gathering import Gathering
from tenure.analysis.report.history import SLO, from_events
from tenure.analysis.report.page import page
from tenure.analysis.sql import local_sql
from tenure.analysis.summary import Summary, Told, quietly
from tenure.api.store import Store
from tenure.errors import InvalidArgument

TITLE = "Tenure report"


def report(
    source: Store | str | os.PathLike[str],
    path: str,
    *,
    title: str = TITLE,
    slo: float | None = None,
    token: str | None = None,
    told: Told = quietly,
) -> Summary:
    """Write the report of a store or of a history to the file `path`.

    `source` is an open store, a store's address, or the folder that `tenure spark history` keeps. `slo` is in seconds
    (60); a history has its own. `tenure.spark.jobs.report` is the same for histories beyond about a million events.
    """
    began = time.monotonic()
    return written(facts_of(source, title=title, slo=slo, token=token, told=told), path, began, told)


def facts_of(
    source: Store | str | os.PathLike[str],
    *,
    title: str = TITLE,
    slo: float | None = None,
    token: str | None = None,
    told: Told = quietly,
) -> Facts:
    """What the report of a store or of a history shows."""
    told("reading the events")
    events, store, said, slo = _events(source, slo, token)
    if not events.num_rows:
        raise InvalidArgument(f"nothing happened in {store} yet: there is nothing to report")
    end_ms = pc.max(events.column("time")).cast(pa.int64()).as_py() // 1000
    with local_sql() as sql:
        kept = sql.keep("events", "SELECT * FROM {events}", events=events)
        history = from_events(sql, kept, store=store, source=said, slo=slo, end_ms=end_ms)
        return Gathering(sql, history, told).facts(title)


def _events(
    source: Store | str | os.PathLike[str], slo: float | None, token: str | None
) -> tuple[pa.Table, str, str, float]:
    """The events, the store's address, where they came from, and the SLO in seconds."""
    if not isinstance(source, Store) and is_history(source):
        folder = HistoryFolder(source)
        entries = folder.entries()
        rows = folder.dataset("bronze").to_table()
        return rows, entries[-1].store, said_runs(len(entries)), _agreed(slo, entries[-1].slo)
    address = source.url if isinstance(source, Store) else os.fspath(source)
    reached = source if isinstance(source, Store) else address
    rows = bulk.read(reached, "events", token=token)
    return rows, address, "from its journal", SLO if slo is None else slo


def is_history(source: str | os.PathLike[str]) -> bool:
    """Whether this is the folder of a history with a run in it, on a disk or on an object store."""
    text = os.fspath(source)
    scheme, colon, _ = text.split(os.sep)[0].partition(":")
    return (not colon or scheme in ("file", *SCHEMES)) and bool(HistoryFolder(text).entries())


def _agreed(asked: float | None, counted: float) -> float:
    if asked is not None and asked != counted:
        raise InvalidArgument(f"this history counts an SLO of {counted:g} s since its first run, and not {asked:g} s")
    return counted


def said_runs(runs: int) -> str:
    return f"in {runs} run{'s' if runs != 1 else ''}"


def written(facts: Facts, path: str, began: float, told: Told) -> Summary:
    """Draw the page and put it in its place."""
    told("drawing")
    text = page(facts)
    target = Path(path).expanduser()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(target)  # a report that is being looked at is never half a page
    return Summary(
        job="report",
        read=facts.events,
        written=1,
        seconds=time.monotonic() - began,
        facts={"path": str(target.absolute()), "bytes": len(text.encode()), "source": facts.source},
    )
