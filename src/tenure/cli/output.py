"""Everything that is printed goes through here: tables and sentences for people, lines of JSON for programs.

What users stored (payloads, errors, keys) is shown with its control characters made visible: a job must not be able to
write to the terminal of whoever looks at it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenure.cli.json_shapes import Shape

#: The width of tables in a file or a pipe, where nobody's window sets one.
PIPE_WIDTH = 160
#: What lies between two columns, and what is left of one that gives way.
BETWEEN, LEAST = 3, 8
STATE_STYLES = {"ready": "green", "scheduled": "cyan", "leased": "yellow", "done": "dim", "dead": "red"}

Cell = str | Text


class Screen(Console):
    """A console that takes no text for markup, and leaves a closed pipe to `frame`."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        seen = stream.isatty()
        super().__init__(
            file=stream, markup=False, emoji=False, highlight=False, soft_wrap=False, width=None if seen else PIPE_WIDTH
        )

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Output:
    """One command's voice: `json` decides whom it speaks to."""

    def __init__(self, as_json: bool) -> None:
        self.json = as_json
        self._screen = Screen()
        self._aside = Screen(stderr=True)

    @property
    def wide(self) -> bool:
        """Whether a table has room for more than the least."""
        return self._screen.width >= 110

    # ── for programs ─────────────────────────────────────────────────────────────────────────────────────────────────

    def emit(self, shape: Shape) -> None:
        """One object on a line of its own. ASCII, so that no locale and no terminal can spoil it."""
        sys.stdout.write(json.dumps(shape) + "\n")

    def emit_all(self, shapes: Iterable[Shape]) -> None:
        sys.stdout.writelines(json.dumps(shape) + "\n" for shape in shapes)

    def raw(self, data: bytes) -> None:
        """Bytes as they are: for `get --payload > file`."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def flush(self) -> None:
        sys.stdout.flush()

    # ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────

    def say(self, *parts: Cell) -> None:
        """A sentence. It is never broken into lines: ids and receipts are there to be copied."""
        self._screen.print(joined(parts), soft_wrap=True)

    def hint(self, text: str) -> None:
        """What to do next: only where a person is looking."""
        if self._screen.is_terminal and not self.json:
            self._screen.print(Text(text, style="dim"))

    def note(self, text: str) -> None:
        """Something to know beside the answer: on stderr, for people."""
        if not self.json:
            self._aside.print(Text(text, style="dim"))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, stretch: str | None = None) -> None:
        """A table; `>name` is a column of numbers. Only the `stretch` column gives way (…) when the window is narrow."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        titles = [column.lstrip(">") for column in columns]
        needed = [max(cell_len(str(cell)) for cell in cells) for cells in zip(titles, *rows, strict=True)]
        spare = self._screen.width - sum(needed) - BETWEEN * (len(needed) - 1)
        if stretch is not None and spare < 0:
            at = titles.index(stretch)
            needed[at] = max(min(LEAST, needed[at]), needed[at] + spare)
        for column, title, width in zip(columns, titles, needed, strict=True):
            right = column.startswith(">")
            table.add_column(
                title, no_wrap=True, overflow="ellipsis", justify="right" if right else "left", width=width
            )
        for row in rows:
            table.add_row(*row)
        self._print_whole(table, sum(needed) + BETWEEN * (len(needed) - 1))

    def _print_whole(self, table: Table, width: int) -> None:
        """Where even that is too wide, the terminal breaks the lines: an id that is cut short is of no use."""
        seen = self._screen.width
        self._screen.width = max(seen, width)
        self._screen.print(table)
        self._screen.width = seen

    def facts(self, facts: Mapping[str, Cell | None]) -> None:
        """Names and values, one a line; those without a value are left out."""
        width = max((len(name) for name, value in facts.items() if value), default=0)
        for name, value in facts.items():
            if value:
                self._screen.print(joined((Text(f"{name:<{width}}  ", style="dim"), value)), soft_wrap=True)

    # ── problems ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def problem(self, code: str, message: str) -> None:
        """What went wrong, in one line on stderr."""
        if self.json:
            sys.stderr.write(json.dumps({"error": code, "message": message}) + "\n")
            sys.stderr.flush()
        else:
            self._aside.print(joined((Text("tenure: ", style="red"), clean(message))), soft_wrap=True)


def joined(parts: Iterable[Cell]) -> Text:
    text = Text()
    for part in parts:
        text.append_text(part) if isinstance(part, Text) else text.append(part)
    return text


def state(name: str | None) -> Text:
    return Text(name or "", style=STATE_STYLES.get(name or "", ""))


def strong(text: str) -> Text:
    return Text(text, style="bold")


def faint(text: str) -> Text:
    return Text(text, style="dim")


def number(value: int, *, alarm: bool = False) -> Text:
    """A count: nothing is faint, and something where there should be nothing is red."""
    return Text(f"{value:,}", style="dim" if not value else "red" if alarm else "")


def clean(text: str) -> str:
    """Text on one line, with what a terminal would obey made visible."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "⏎" if c == "\n" else c.encode("unicode_escape").decode() for c in text)


def preview(data: bytes | None, limit: int = 120) -> str:
    """The beginning of a payload, as text if it is text."""
    if data is None:
        return ""
    head = data[: limit * 4]
    try:
        text = head.decode()
    except UnicodeDecodeError as exc:
        # A character cut in two at the end of the head is no reason to show hex.
        if exc.start < len(head) - 3 or len(head) == len(data):
            return f"{len(data):,} bytes: {data[:16].hex(' ')}{' …' if len(data) > 16 else ''}"
        text = head[: exc.start].decode()
    return shortened(clean(text), limit) if len(head) == len(data) else clean(text)[: limit - 1] + "…"


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
