"""Times, previews and the progress bar: what people read."""

from __future__ import annotations

import io
import time
from datetime import UTC, datetime

import click
import pytest

from tenure.cli import progress as progress_module
from tenure.cli import times
from tenure.cli.output import clean, clean_lines, headline, plural, preview, shortened


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("1.5", 1.5), ("250ms", 0.25), ("30s", 30), ("5m", 300), ("5min", 300), ("2h", 7200), ("7d", 604_800)],
)
def test_durations(text: str, seconds: float):
    assert times.DURATION.convert(text, None, None) == seconds


def test_moments():
    now = times.now_ms() / 1000
    assert times.FUTURE_TIME.convert("2h", None, None) == pytest.approx(now + 7200, abs=60)
    assert times.PAST_TIME.convert("2h", None, None) == pytest.approx(now - 7200, abs=60)
    assert times.PAST_TIME.convert("now", None, None) == pytest.approx(now, abs=60)
    assert (
        times.FUTURE_TIME.convert("2030-01-31T09:00:00+00:00", None, None)
        == datetime(2030, 1, 31, 9, tzinfo=UTC).timestamp()
    )
    local = datetime(2030, 1, 31, 9).astimezone().timestamp()
    assert times.FUTURE_TIME.convert("2030-01-31T09:00", None, None) == local
    assert times.FUTURE_TIME.convert("1900000000", None, None) == 1_900_000_000
    for wrong in ("2024", "soon", "", "5 parsecs"):
        with pytest.raises(click.BadParameter):
            times.FUTURE_TIME.convert(wrong, None, None)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "now"), (30, "in 30 s"), (-30, "30 s ago"), (-120, "2 min ago"), (3600 * 5, "in 5 h"), (86_400 * 9, "in 9 d")],
)
def test_relative(seconds: float, shown: str, monkeypatch: pytest.MonkeyPatch):
    now = times.now_ms()
    monkeypatch.setattr(times, "now_ms", lambda: now)
    assert times.relative(now + int(seconds * 1000)) == shown


def test_iso_and_local():
    assert times.iso(1_800_000_000_123) == "2027-01-15T08:00:00.123Z"
    assert times.iso(None) is None
    assert "-" in times.local(0)  # with its date
    assert "-" not in times.local(times.now_ms())


def test_previews():
    assert preview(b"hello") == "hello"
    assert preview(None) == ""
    assert preview("é".encode() * 1000, 10) == "é" * 9 + "…"
    assert preview("aé€😀".encode() * 100, 5) == "aé€😀…"
    assert preview(bytes(range(200, 232))) == "32 bytes: c8 c9 ca cb cc cd ce cf d0 d1 d2 d3 d4 d5 d6 d7 …"
    assert preview(b"a\nb\x1b") == "a⏎b\\x1b"
    assert preview("abc…".encode() * 200, 5) == "abc…", "one ellipsis, not two"
    assert shortened("abc…defgh", 5) == "abc…"


def test_an_error_in_one_line():
    assert headline(None) == ""
    assert headline("Boom: x\n\nTraceback (most recent call last):\n  …\nBoom: x") == "Boom: x"
    assert headline("Traceback (most recent call last):\n  …\nBoom: y\n") == "Boom: y"


def test_lines_are_kept_and_controls_escaped():
    assert clean_lines("a\r\nb\tc\x1b[1m\x00\n") == "a\nb\tc\\x1b[1m\\x00\n"


def test_small_words():
    assert clean("a\tb") == "a\\tb"
    assert (plural(1, "job"), plural(2000, "job")) == ("1 job", "2,000 jobs")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_appears_only_after_a_while_and_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    for stream, rest, shown in ((Terminal(), 0.5, True), (Terminal(), 0.0, False), (io.StringIO(), 0.5, False)):
        with monkeypatch.context() as patch:
            patch.setattr(progress_module, "PATIENCE_SECONDS", 0.05 if rest else 60)
            patch.setattr("sys.stderr", stream)
            with progress_module.progress_bar("Checking") as progress:
                progress(5, 10)
                time.sleep(rest)
                progress(10, 10)
        assert ("Checking" in stream.getvalue()) is shown
