"""OpenLineage: each job of this package tells what it reads and writes, to the lineage server of the program's own client.

    START ──▶ COMPLETE, with the rows that were written ──▶ the catalog's graph
          └─▶ FAIL, with the error

Where events go is the client's own configuration (OPENLINEAGE_URL, OPENLINEAGE__TRANSPORT__TYPE, openlineage.yml). Without
the package, or with nothing configured (its console), nothing is told. A server that cannot be reached fails no job.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec

from tenure import telemetry
from tenure.analysis.summary import Summary
from tenure.clock import SystemClock
from tenure.settings import without_password

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

P = ParamSpec("P")
NAMESPACE = "tenure"
#: Who made the events: a URI, as OpenLineage asks for.
PRODUCER = "urn:tenure:spark"
#: Parameters of jobs that are addresses of stores; others are files or folders.
_STORES = frozenset({"url", "source", "target"})


def traced(*, reads: Sequence[str], writes: Sequence[str]) -> Callable[[Callable[P, Summary]], Callable[P, Summary]]:
    """Tell of each run of a job. `reads`, `writes`: the parameters that name stores, files and folders; None is left out."""

    def around(job: Callable[P, Summary]) -> Callable[P, Summary]:
        signature = inspect.signature(job)

        @functools.wraps(job)
        def run(*args: P.args, **kwargs: P.kwargs) -> Summary:
            client = _client()
            if client is None:
                return job(*args, **kwargs)
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            told = _Run(client, job.__name__, given.arguments, reads, writes)
            told.tell("START")
            try:
                summary = job(*args, **kwargs)
            except BaseException as error:
                told.tell("FAIL", error=error)
                raise
            told.tell("COMPLETE", summary)
            return summary

        return run

    return around


def _client() -> OpenLineageClient | None:
    """The program's client; None: it has none, or told it nothing about where events go."""
    if find_spec("openlineage") is None:
        return None
    from openlineage.client import OpenLineageClient

    # With nothing configured, the client would print events and warn about it: it is not used then.
    log = logging.getLogger("openlineage.client.client")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        client = OpenLineageClient()
    except Exception as error:  # noqa: BLE001 - a wrong configuration of the lineage must not fail the job
        telemetry.warn("lineage_not_told", error=error)
        return None
    finally:
        log.setLevel(level)
    return None if client.transport.kind in ("console", "noop") else client


class _Run:
    """One run of a job, known by an id of its own."""

    def __init__(
        self,
        client: OpenLineageClient,
        job: str,
        arguments: dict[str, Any],
        reads: Sequence[str],
        writes: Sequence[str],
    ) -> None:
        from openlineage.client.uuid import generate_new_uuid

        self._client, self._job, self._id = client, job, str(generate_new_uuid())
        self._reads, self._writes = (
            [_dataset(name, arguments[name]) for name in names if arguments.get(name)] for names in (reads, writes)
        )

    def tell(self, state: str, summary: Summary | None = None, error: BaseException | None = None) -> None:
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run, output_statistics_output_dataset

        statistics: dict[str, Any] = {}
        if summary is not None:
            rows = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=summary.written)
            statistics = {"outputStatistics": rows}
        failure: dict[str, Any] = {}
        if error is not None:
            said = f"{type(error).__name__}: {error}"
            failure = {"errorMessage": error_message_run.ErrorMessageRunFacet(said, "PYTHON")}
        event = RunEvent(
            eventTime=datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC).isoformat(),
            producer=PRODUCER,
            eventType=RunState[state],
            run=Run(self._id, failure),
            job=Job(NAMESPACE, self._job),
            inputs=[InputDataset(*dataset) for dataset in self._reads],
            outputs=[OutputDataset(*dataset, outputFacets=statistics) for dataset in self._writes],
        )
        try:
            self._client.emit(event)
        except Exception as exc:  # noqa: BLE001 - the job has done its work, or is about to
            telemetry.warn("lineage_not_told", job=self._job, error=exc)


def _dataset(name: str, value: object) -> tuple[str, str]:
    """Namespace and name: a store by its address, a file or folder by its path."""
    text = without_password(str(value))
    if name in _STORES:
        return text, "tenure"
    scheme, separator, _ = text.partition("://")
    return (scheme, text) if separator else ("file", os.path.abspath(text))
