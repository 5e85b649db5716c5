"""DurableWatermark: the recorded lower bound for the end of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.storage.durable_watermark import WORD, DurableWatermark


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "DURABLE"


def note(path: Path, boot: str, *notes: tuple[int, int]) -> None:
    marks = DurableWatermark(path, boot)
    for written, durable in notes:
        marks.note(written, durable)
    marks.close()


def required(path: Path, boot: str) -> int:
    marks = DurableWatermark(path, boot)
    marks.close()
    return marks.required


def test_a_new_file_requires_nothing(path: Path) -> None:
    assert required(path, "a") == 0
    assert required(path, "a") == 0


def test_within_one_boot_written_commits_are_required(path: Path) -> None:
    note(path, "a", (5, 3), (9, 3))
    assert required(path, "a") == 9


def test_after_a_reboot_only_synced_commits_are_required(path: Path) -> None:
    note(path, "a", (5, 3), (9, 4))
    assert required(path, "b") == 4


def test_an_unknown_boot_is_never_the_same(path: Path) -> None:
    """Without a boot id only synced commits are required: the machine may have restarted."""
    note(path, "a", (9, 4))
    assert required(path, "") == 4


def test_the_newest_note_counts_whichever_slot_it_is_in(path: Path) -> None:
    for count in range(1, 6):
        path.unlink(missing_ok=True)
        note(path, "a", *[(n, n) for n in range(1, count + 1)])
        assert required(path, "a") == count


@pytest.mark.parametrize("at", [0, 10, 20, 27, 32, 40, 59])
def test_a_torn_note_leaves_the_one_before(path: Path, at: int) -> None:
    note(path, "a", (7, 7), (8, 8))
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    marks = DurableWatermark(path, "a")
    assert marks.required in (7, 8)
    assert marks.damaged
    marks.close()


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, bytes(64), b"x" * 200])
def test_an_empty_or_damaged_file_requires_nothing(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert required(path, "a") == 0
    note(path, "a", (3, 3))
    assert required(path, "a") == 3


def test_a_damaged_word_of_this_boot_is_told(path: Path) -> None:
    marks = DurableWatermark(path, "a")
    marks.note(5, 3)
    marks.note_written(9)
    assert marks.remarks() == ()
    marks.close()
    assert required(path, "a") == 9
    marks = DurableWatermark(path, "a")
    marks.words[WORD] ^= 1 << 20
    marks.close()
    damaged = DurableWatermark(path, "a")
    assert damaged.damaged
    assert damaged.required == 5  # of what is left
    assert any("DURABLE is damaged" in remark for remark in damaged.remarks())
    damaged.close()
