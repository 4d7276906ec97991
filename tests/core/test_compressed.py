"""Gzip files: checked to their end, and bounded before they fill the memory."""

import gzip
import tracemalloc
from pathlib import Path

import pytest

from domainwise.core import compressed
from domainwise.core.compressed import unpacked, unpacked_lines
from domainwise.core.errors import UserError

TEXT = b"".join(b"%d lines\n" % number for number in range(300_000))


def test_the_content_is_what_was_packed(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(TEXT, mtime=0))
    assert unpacked(file, "") == TEXT and list(unpacked_lines(file, "")) == TEXT.splitlines()
    file.write_bytes(gzip.compress(b""))
    assert unpacked(file, "") == b"" and list(unpacked_lines(file, "")) == []


def test_a_file_that_unpacks_to_gigabytes_is_refused_without_the_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "MARGIN", 1 << 22)
    bomb = tmp_path / "x.gz"
    bomb.write_bytes(gzip.compress(bytes(1 << 26)))
    tracemalloc.start()
    with pytest.raises(UserError, match=r"x\.gz unpacks to more than 200 times its size: restore it"):
        unpacked(bomb, "restore it")
    assert tracemalloc.get_traced_memory()[1] < 1 << 25
    tracemalloc.stop()
    monkeypatch.setattr(compressed, "LONGEST_LINE", 1 << 21)
    with pytest.raises(UserError, match="has a line of more than 2 MiB"):
        list(unpacked_lines(bomb, ""))


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (lambda data: data[:0], "is cut short"),
        (lambda data: data[:-1], "is cut short"),
        (lambda data: data[:5], "is cut short"),
        (lambda data: data[: len(data) // 2], "is cut short"),
        (lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:], "is damaged"),
        (lambda data: data[:1000] + b"xyz" + data[1003:], "is damaged"),
        (lambda data: data + b"x", "goes on after its end"),
        (lambda data: data + data, "goes on after its end"),
        (lambda data: b"plain text\n" + data, "is damaged, or no gzip file"),
    ],
)
def test_damage_is_named(tmp_path: Path, harm: object, complaint: str) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(harm(gzip.compress(TEXT)))  # type: ignore[operator]
    with pytest.raises(UserError, match=complaint):
        unpacked(file, "")


def test_a_last_line_must_be_whole(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(b"a\nb"))
    with pytest.raises(UserError, match="cut short within a line"):
        list(unpacked_lines(file, ""))
