"""Swagger UI's files: from their package, with the digests that are written down, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import api_viewer


def test_what_is_here_is_what_was_asked_for():
    assert api_viewer.missing(Path(__file__).parents[1]) == []


def test_files_are_copied_from_the_package_and_a_changed_one_is_mended(tmp_path: Path):
    folder = tmp_path / api_viewer.FOLDER
    folder.mkdir(parents=True)
    (folder / "swagger-ui.css").write_text("something else")
    assert set(api_viewer.missing(tmp_path)) == set(api_viewer.FILES)
    api_viewer.put_files(tmp_path)
    assert api_viewer.missing(tmp_path) == []


def test_a_package_with_other_files_or_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / api_viewer.FOLDER).mkdir(parents=True)
    monkeypatch.setitem(api_viewer.FILES, "LICENSE", "0" * 64)
    with pytest.raises(SystemExit, match="is not that of"):
        api_viewer.put_files(tmp_path)
    monkeypatch.setattr(api_viewer, "CARRIER", "no-such-package==1")
    with pytest.raises(SystemExit, match="make setup"):
        api_viewer.put_files(tmp_path)
