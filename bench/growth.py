"""Growth: what a life costs when there is much of everything."""

from __future__ import annotations

from bench.runner import Section

SECTIONS: list[Section] = []
