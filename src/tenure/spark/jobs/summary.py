"""`tenure.analysis.summary`, under the name that the jobs of this package import."""

from __future__ import annotations

from tenure.analysis.summary import Summary, Told, quietly

__all__ = ["Summary", "Told", "quietly"]
