"""Downloads from a server on the loopback that stalls, cuts, lies and forgets."""

import hashlib
import re
from pathlib import Path

import pytest

from domainwise.core.errors import UserError
from domainwise.data.sources import downloads
from domainwise.data.sources.downloads import Download, fetch
from download_server import DATA, Server


def wanted(server: Server, checksum: str = f"md5:{hashlib.md5(DATA).hexdigest()}") -> Download:
    return Download(server.url, checksum, "svhn/digits.mat", len(DATA))


def left(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["md5", "sha256"])
@pytest.mark.parametrize("tells_length", [True, False])
def test_a_file_arrives_once_and_progress_is_told(
    server: Server, tmp_path: Path, kind: str, tells_length: bool
) -> None:
    server.tells_length = tells_length
    download = wanted(server, f"{kind}:{hashlib.new(kind, DATA).hexdigest()}")
    told: list[tuple[int, int | None]] = []
    file = fetch(download, tmp_path, lambda done, total: told.append((done, total)))
    assert file == tmp_path / "svhn" / "digits.mat" and file.read_bytes() == DATA
    total = len(DATA) if tells_length else None
    assert told[0] == (0, total) and told[-1] == (len(DATA), total)
    assert fetch(download, tmp_path).read_bytes() == DATA and len(server.asked) == 1, "it is not asked for again"
    assert left(tmp_path) == ["svhn/digits.mat"]


def test_a_connection_that_drops_again_and_again_is_continued(server: Server, tmp_path: Path) -> None:
    server.cut_after, server.cuts = 50_000, 4
    assert fetch(wanted(server), tmp_path).read_bytes() == DATA
    assert server.asked == [None, *(f"bytes={n}-" for n in (50_000, 100_000, 150_000, 200_000))]


def test_a_later_command_continues_a_partial_file(server: Server, tmp_path: Path) -> None:
    server.cut_after, server.cuts = 100_000, 1
    partial = tmp_path / "svhn" / "digits.mat.part"
    partial.parent.mkdir()
    partial.write_bytes(DATA[:120_000])
    told: list[int] = []
    assert fetch(wanted(server), tmp_path, lambda done, _: told.append(done)).read_bytes() == DATA
    assert server.asked[0] == "bytes=120000-" and told[0] == 120_000
    assert left(tmp_path) == ["svhn/digits.mat"]


def test_a_server_that_dies_leaves_a_partial_file_that_is_never_taken_for_whole(server: Server, tmp_path: Path) -> None:
    server.cut_after, server.cuts = 0, 100
    partial = tmp_path / "svhn" / "digits.mat.part"
    partial.parent.mkdir()
    partial.write_bytes(DATA[:120_000])
    with pytest.raises(UserError, match=r"120,000 bytes that came are kept, the same command continues"):
        fetch(wanted(server), tmp_path)
    assert left(tmp_path) == ["svhn/digits.mat.part"]
    server.cuts = 0
    assert fetch(wanted(server), tmp_path).read_bytes() == DATA


def test_nobody_listening_is_one_line(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=re.escape(server.url)) as caught:
        fetch(wanted(server), tmp_path)
    assert "\n" not in str(caught.value) and left(tmp_path) == []


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.cut_after, server.cuts, server.knows_ranges = 50_000, 1, False
    told: list[tuple[int, int | None]] = []
    assert fetch(wanted(server), tmp_path, lambda *now: told.append(now)).read_bytes() == DATA
    assert {total for _, total in told} == {len(DATA)} and [done for done, _ in told].count(0) == 2


def test_a_partial_file_that_is_complete_is_checked_and_kept(server: Server, tmp_path: Path) -> None:
    partial = tmp_path / "svhn" / "digits.mat.part"
    partial.parent.mkdir()
    partial.write_bytes(DATA)
    assert fetch(wanted(server), tmp_path).read_bytes() == DATA
    assert server.asked == [f"bytes={len(DATA)}-"]


@pytest.mark.parametrize("stale", [b"x" * 1000, b"x" * 400_000])
def test_a_partial_file_of_something_else_is_never_accepted(server: Server, tmp_path: Path, stale: bytes) -> None:
    partial = tmp_path / "svhn" / "digits.mat.part"
    partial.parent.mkdir()
    partial.write_bytes(stale)
    if len(stale) < len(DATA):
        with pytest.raises(UserError, match="checksum"):
            fetch(wanted(server), tmp_path)
        assert left(tmp_path) == []
    assert fetch(wanted(server), tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("keep", [299_999, 0])
def test_a_truncated_file_of_unknown_length_is_found_by_its_checksum(server: Server, tmp_path: Path, keep: int) -> None:
    server.tells_length, server.cut_after, server.cuts = False, keep, 1
    with pytest.raises(UserError, match="checksum"):
        fetch(wanted(server), tmp_path)
    assert left(tmp_path) == []


def test_wrong_data_is_never_kept(server: Server, tmp_path: Path) -> None:
    server.data = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with pytest.raises(UserError, match=r"checksum md5:") as caught:
        fetch(wanted(server), tmp_path)
    assert server.url in str(caught.value) and left(tmp_path) == []


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (403, 1), (503, downloads.ATTEMPTS)])
def test_errors_of_the_server_are_one_line(server: Server, tmp_path: Path, status: int, asked: int) -> None:
    server.status = status
    with pytest.raises(UserError, match=f"cannot be fetched: {status}"):
        fetch(wanted(server), tmp_path)
    assert len(server.asked) == asked and left(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_said(server: Server, tmp_path: Path) -> None:
    (tmp_path / "svhn").write_text("in the way")
    with pytest.raises(UserError, match="cannot write"):
        fetch(wanted(server), tmp_path)
