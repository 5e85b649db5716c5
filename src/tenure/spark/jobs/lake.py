"""Writing a history (`tenure.analysis.history_folder`): a run's files, its commit, and the removal of what was left behind."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tenure.analysis.commit_log import RunConflict
from tenure.analysis.history_folder import OPEN, Entry, HistoryFolder
from tenure.spark.jobs import root_tables

__all__ = ["OPEN", "Entry", "Lake", "RunConflict"]


class Lake(HistoryFolder):
    """A history for the jobs that write it."""

    def place(self, table: str, label: str, attempt: str) -> str:
        return f"{table}/run={label}/{attempt}"

    def read(self, spark: SparkSession, table: str, *, last: bool = False) -> DataFrame | None:
        """A table of all runs, or of the last one only (always, of what is open); None if there is no run yet."""
        places = self.places(table, last=last)
        return root_tables.read(spark, self.root, places) if places else None

    def vacuum(self) -> int:
        """Remove folders that no entry names and none can name any more; returns how many."""
        entries = self.entries()
        # Only the last run's open tables count. Those of the run before stay for readers that have them open.
        logged = {
            place
            for entry in entries
            for table, place in entry.tables.items()
            if table not in OPEN or entry.number >= len(entries) - 1
        }
        end = sum(entries[-1].end.values()) if entries else 0

        def taken(label: str) -> bool:
            """Whether a committed run covers the first commit of this label: a run so labelled can no longer be committed."""
            begin = label.partition("-")[0]
            return begin.isdigit() and int(begin) < end

        return self.log.vacuum(logged, taken)
