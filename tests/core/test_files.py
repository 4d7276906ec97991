"""Files in a folder that several machines share, where processes of both may have the same number."""

from pathlib import Path

import pytest

from domainwise.core.files import atomic, writable_folder


def test_two_that_write_one_file_at_once_both_succeed_and_the_last_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with atomic(path) as ours:
        ours.write(b"the longer text, ")
        with atomic(path) as theirs:
            theirs.write(b"theirs")
        assert path.read_bytes() == b"theirs"
        ours.write(b"whole")
    assert path.read_bytes() == b"the longer text, whole" and list(tmp_path.iterdir()) == [path]


def test_two_that_try_one_folder_at_once_both_find_it_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch = Path.touch

    def meanwhile(path: Path) -> None:
        monkeypatch.setattr(Path, "touch", touch)
        touch(path)
        writable_folder(tmp_path)

    monkeypatch.setattr(Path, "touch", meanwhile)
    assert writable_folder(tmp_path) == tmp_path and not list(tmp_path.iterdir())
