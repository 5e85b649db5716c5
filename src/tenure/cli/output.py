"""All printing of the command line: tables and sentences for people, lines of JSON for programs.

Stored text (payloads, errors, keys) is shown with its control characters escaped: a job must not be able to send
commands to the reader's terminal.
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
from tenure.model import explanation

#: The width of tables in a file or a pipe.
PIPE_WIDTH = 160
#: Blanks between two columns, and the smallest width of the column that shrinks.
BETWEEN, LEAST = 3, 8
STATE_STYLES = {
    "blocked": "magenta",
    "ready": "green",
    "scheduled": "cyan",
    "leased": "yellow",
    "done": "dim",
    "dead": "red",
}

Cell = str | Text


class Screen(Console):
    """A console that does not interpret markup, and raises BrokenPipeError for a closed pipe (see `Root.invoke`)."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        seen = stream.isatty()
        super().__init__(
            file=stream, markup=False, emoji=False, highlight=False, soft_wrap=False, width=None if seen else PIPE_WIDTH
        )

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Output:
    """The output of one command; `json` chooses between objects for programs and text for people."""

    def __init__(self, as_json: bool) -> None:
        self.json = as_json
        self._screen = Screen()
        self._aside = Screen(stderr=True)

    @property
    def wide(self) -> bool:
        """Whether the terminal has room for the long form of times."""
        return self._screen.width >= 110

    # ── for programs ─────────────────────────────────────────────────────────────────────────────────────────────────

    def emit(self, shape: Shape) -> None:
        """Print one object on one line, in ASCII, which every locale and terminal can show."""
        sys.stdout.write(json.dumps(shape) + "\n")

    def emit_all(self, shapes: Iterable[Shape]) -> None:
        sys.stdout.writelines(json.dumps(shape) + "\n" for shape in shapes)

    def raw(self, data: bytes) -> None:
        """Write bytes unchanged."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def content(self, data: bytes, *, raw: bool = False) -> None:
        """Write a payload or a result: unchanged with `raw` or if stdout is no terminal, else with escaped control
        characters.
        """
        if raw or not sys.stdout.isatty():
            self.raw(data)
            return
        text = clean_lines(data.decode("utf-8", "backslashreplace"))
        sys.stdout.write(text if text.endswith("\n") else text + "\n")

    def flush(self) -> None:
        sys.stdout.flush()

    # ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────

    def say(self, *parts: Cell) -> None:
        """Print a sentence on one line, however long, so that ids and receipts can be copied."""
        self._screen.print(joined(parts), soft_wrap=True)

    def hint(self, text: str) -> None:
        """Print what to do next, on a terminal only."""
        if self._screen.is_terminal and not self.json:
            self._screen.print(Text(text, style="dim"))

    def note(self, text: str) -> None:
        """Print a remark on stderr, not with --json."""
        if not self.json:
            self._aside.print(Text(text, style="dim"))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, stretch: str | None = None) -> None:
        """Print a table; `>name` is right-aligned. In a narrow window only the column `stretch` is shortened (…)."""
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
        """Print the table at its full width: the terminal may wrap its lines, but no id is shortened."""
        seen = self._screen.width
        self._screen.width = max(seen, width)
        self._screen.print(table)
        self._screen.width = seen

    def facts(self, facts: Mapping[str, Cell | None]) -> None:
        """Print names and values, omitting empty values. Further lines of a value are indented to its first."""
        width = max((len(name) for name, value in facts.items() if value), default=0)
        for name, value in facts.items():
            if value:
                label = Text(f"{name:<{width}}  ", style="dim")
                for line in joined((value,)).split("\n", allow_blank=True):
                    self._screen.print(joined((label, line)), soft_wrap=True)
                    label = Text(" " * (width + 2))

    # ── problems ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def problem(self, code: str, message: str) -> None:
        """Print what went wrong, in one line on stderr."""
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
    """Return a count: dim if it is 0, else red if it is an `alarm`."""
    return Text(f"{value:,}", style="dim" if not value else "red" if alarm else "")


def clean(text: str) -> str:
    """Return text on one line, with line ends as ⏎ and other control characters escaped."""
    return _escaped(text, "⏎")


def clean_lines(text: str) -> str:
    """Return text with its lines kept, and control characters other than tabs escaped."""
    return "\n".join(_escaped(line, "", keep="\t") for line in text.replace("\r\n", "\n").split("\n"))


def _escaped(text: str, line_end: str, keep: str = "") -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else line_end if c == "\n" else c.encode("unicode_escape").decode()
        for c in text
    )


def headline(error: str | None) -> str:
    """Return the line of an error that names it, for a table, with control characters escaped."""
    return clean(explanation.headline(error))


def preview(data: bytes | None, limit: int = 120) -> str:
    """Return the beginning of a payload: as text if it is UTF-8, else in hex."""
    if data is None:
        return ""
    head = data[: limit * 4]
    try:
        text = head.decode()
    except UnicodeDecodeError as exc:
        # Cutting may have split the last character: that does not make it binary.
        if exc.start < len(head) - 3 or len(head) == len(data):
            return f"{len(data):,} bytes: {data[:16].hex(' ')}{' …' if len(data) > 16 else ''}"
        text = head[: exc.start].decode()
    return shortened(clean(text) + ("" if len(head) == len(data) else "…"), limit)


def shortened(text: str, limit: int) -> str:
    """Return the text, or its beginning and one ellipsis."""
    return text if len(text) <= limit else text[: limit - 1].rstrip("…") + "…"


def shortened_inside(text: str, limit: int) -> str:
    """Return the text, or its two ends around one ellipsis: names often differ at their ends."""
    if len(text) <= limit:
        return text
    head = max(0, limit - 1) // 2
    return text[:head] + "…" + text[len(text) - max(0, limit - 1 - head) :]


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
