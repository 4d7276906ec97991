"""The running checksum of records: every changed byte is noticed, and a crash costs the last block only."""

import json
import random
from pathlib import Path

import pytest

from domainwise.core.errors import UserError
from domainwise.protocol.checked_lines import Extent, append_block, extent, intact, unseal


def lines(*numbers: int) -> bytes:
    return "".join(json.dumps({"step": number, "accuracy": number / 7}) + "\n" for number in numbers).encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    for block in ((0, 1, 2), (3,), (4, 5)):
        append_block(path, lines(*block))
    return path


def whole(path: Path) -> bytes:
    return intact(path.read_bytes(), path, "restore it")


def test_blocks_are_read_as_they_were_written(file: Path) -> None:
    assert unseal(whole(file)) == lines(0, 1, 2, 3, 4, 5)
    assert file.read_bytes().count(b'"crc"') == 3


def test_every_flipped_bit_is_noticed(file: Path) -> None:
    data = file.read_bytes()
    for at in range(len(data)):
        for bit in range(8):
            with pytest.raises(UserError, match=r"records\.jsonl is damaged"):
                intact(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], file, "")


def test_a_cut_anywhere_leaves_whole_blocks_or_is_noticed(file: Path) -> None:
    data, seen = file.read_bytes(), set()
    for length in range(len(data)):
        try:
            seen.add(unseal(intact(data[:length], file, "")))
        except UserError:
            assert data[:length].endswith(b"\n"), "whole lines without a checksum"
    firsts = {lines(*range(number)) for number in (0, 1, 2)}  # as files of earlier versions
    assert seen == firsts | {lines(0, 1, 2), lines(0, 1, 2, 3)}


@pytest.mark.parametrize("lost", [1, 5, 15, 30, 50])
def test_a_block_that_a_crash_cut_short_is_replaced(file: Path, lost: int) -> None:
    file.write_bytes(file.read_bytes()[:-lost])
    append_block(file, lines(6))
    assert unseal(whole(file)) == lines(0, 1, 2, 3, 6)


def test_what_was_damaged_stays_damaged(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data)
    append_block(file, lines(6))
    with pytest.raises(UserError, match="is damaged"):
        whole(file)


def test_files_of_earlier_versions_are_read_and_continued(tmp_path: Path) -> None:
    file = tmp_path / "old.jsonl"
    file.write_bytes(lines(0, 1) + b'{"step": 2')
    assert whole(file) == lines(0, 1)
    append_block(file, lines(2))
    assert unseal(whole(file)) == lines(0, 1, 2)


def test_the_extent_is_that_of_the_whole_blocks(file: Path) -> None:
    data = file.read_bytes()
    found = extent(file)
    assert found.size == len(data) and found.fits(data) and found.fits(data + b"more")
    assert not found.fits(data[:-1]) and not found.fits(b"x" + data[1:]) and not found.fits(b"")
    file.write_bytes(data + b'{"step": 9')
    assert extent(file) == found
    assert extent(file.with_name("absent")) == Extent(0, 0) and Extent(0, 0).fits(b"")


def test_blocks_longer_than_what_is_read_of_the_end(tmp_path: Path) -> None:
    file, luck = tmp_path / "long.jsonl", random.Random(0)
    for count in (3000, 1, 3000):
        append_block(file, lines(*(luck.randrange(10**9) for _ in range(count))))
        assert extent(file).fits(file.read_bytes()) and extent(file).size == file.stat().st_size
    assert whole(file) == file.read_bytes()
