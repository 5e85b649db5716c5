"""Reading the documents: their code blocks, tables, links and headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
DOCUMENTS = sorted(
    [
        README,
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *DOCS.rglob("*.md"),
    ]
)

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block of code: what follows its fence, and the line it begins at."""

    language: str
    marks: frozenset[str]
    body: str
    line: int
    #: Why no test runs it: `not-run="reason"`.
    reason: str = ""


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text()
    for found in _FENCE.finditer(text):
        language, *marks = shlex.split(found["info"]) or [""]
        reason = next((mark.removeprefix("not-run=") for mark in marks if mark.startswith("not-run=")), "")
        line = text.count("\n", 0, found.start("body")) + 1
        yield Block(language, frozenset(marks), found["body"], line, reason)


def prose(document: Path) -> str:
    """The text without its blocks of code."""
    return _FENCE.sub("", document.read_text())


def links(document: Path) -> list[str]:
    return _LINK.findall(prose(document))


def anchors(document: Path) -> set[str]:
    """Where `#…` may point, as GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


Table = list[list[str]]


def tables(text: str) -> Iterator[Table]:
    """Each table's rows of cells, its head first, without the rule below it."""
    for found in re.finditer(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [_cells(line) for line in found[0].splitlines()]
        yield [rows[0], *rows[2:]]


def table(document: Path, *head: str) -> Table:
    """The rows of the one table that begins with these columns."""
    found = [rows for rows in tables(document.read_text()) if rows[0][: len(head)] == list(head)]
    assert len(found) == 1, f"{name_of(document)} has {len(found)} tables with the columns {', '.join(head)}"
    return found[0][1:]


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
