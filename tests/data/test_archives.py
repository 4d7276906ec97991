"""Archives: unpacked whole or not at all, inside their folder, plain files only."""

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from domainwise.core.errors import UserError
from domainwise.data.sources.archives import extract

FILES = {"PACS/photo/dog/1.jpg": b"woof", "PACS/photo/cat/2.jpg": b"miaow" * 1000, "PACS/readme.txt": b""}


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tarred(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, f"w:{path.suffix[1:]}" if path.suffix != ".tar" else "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in more:
            archive.addfile(member)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz"])
def test_an_archive_of_one_folder_becomes_the_target(tmp_path: Path, name: str) -> None:
    archive = (zipped if name == "a.zip" else tarred)(tmp_path / name, FILES)
    extract(archive, tmp_path / "data" / "pacs")
    assert contents(tmp_path / "data" / "pacs") == {k.removeprefix("PACS/"): v for k, v in FILES.items()}
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["pacs"], "nothing temporary is left"


def test_several_entries_keep_their_folders_and_backslashes_are_slashes(tmp_path: Path) -> None:
    extract(zipped(tmp_path / "a.zip", {"a\\b.txt": b"1", "c.txt": b"2"}), tmp_path / "out")
    assert contents(tmp_path / "out") == {"a/b.txt": b"1", "c.txt": b"2"}


ESCAPES = ["../evil", "a/../../evil", "/tmp/evil", "..\\evil", "C:\\evil", "C:/evil"]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_no_path_leads_outside(tmp_path: Path, name: str, pack: Callable[..., Path]) -> None:
    archive = pack(tmp_path / f"a.{'zip' if pack is zipped else 'tar'}", {"fine.txt": b"1", name: b"2"})
    refused(archive, tmp_path / "deep" / "out", "leads outside")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(
    "member",
    [
        special("link", tarfile.SYMTYPE, "/etc/passwd"),
        special("link", tarfile.LNKTYPE, "fine.txt"),
        special("device", tarfile.CHRTYPE),
        special("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: member.name + member.type.decode(),
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    refused(tarred(tmp_path / "a.tar", {"fine.txt": b"1"}, member), tmp_path / "out", "link or a device")


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    refused(tmp_path / "a.zip", tmp_path / "out", "link or a device")


@pytest.mark.parametrize(("limit", "words"), [({"most_bytes": 4999}, "bytes"), ({"most_entries": 2}, "entries")])
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_limits(tmp_path: Path, pack: Callable[..., Path], limit: dict[str, int], words: str) -> None:
    archive = pack(tmp_path / f"a.{'zip' if pack is zipped else 'tar'}", FILES)
    refused(archive, tmp_path / "out", f"more than .* {words}", **limit)
    extract(archive, tmp_path / "out", most_bytes=5004, most_entries=3)


def test_a_zip_whose_header_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", {"bomb": bytes(100_000)})
    data = archive.read_bytes()
    archive.write_bytes(data.replace((100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(UserError):
        extract(archive, tmp_path / "out", most_bytes=1000)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.bz2", "a.tar.xz"])
@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
def test_a_cut_archive_is_named_and_leaves_nothing(tmp_path: Path, name: str, keep: float) -> None:
    files = {f"x/{i}": os.urandom(5000) for i in range(20)}
    archive = (zipped if name == "a.zip" else tarred)(tmp_path / name, files)
    archive.write_bytes(archive.read_bytes()[: int(keep * archive.stat().st_size)])
    refused(archive, tmp_path / "out", "damaged or not an archive")


def test_a_damaged_byte_is_found_by_the_archives_own_checksum(tmp_path: Path) -> None:
    for name in ("a.zip", "a.tar.gz"):
        archive = (zipped if name == "a.zip" else tarred)(tmp_path / name, {"x/1": os.urandom(5000), "x/2": b"2"})
        data = bytearray(archive.read_bytes())
        data[2500] ^= 255
        archive.write_bytes(data)
        refused(archive, tmp_path / f"{name}-out", "damaged or not an archive")


def test_what_is_no_archive_or_needs_a_password_is_said(tmp_path: Path) -> None:
    (tmp_path / "page.zip").write_text("<html>please sign in</html>")
    refused(tmp_path / "page.zip", tmp_path / "out", "damaged or not an archive")
    archive = zipped(tmp_path / "a.zip", {"secret": b"1"})
    data = archive.read_bytes().replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")
    archive.write_bytes(data)
    refused(archive, tmp_path / "out", "needs a password")


@pytest.mark.parametrize("names", [["x/1", "x/1"], ["x", "x/1"]])
def test_two_entries_of_one_name_are_refused(tmp_path: Path, names: list[str]) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    refused(tmp_path / "a.tar", tmp_path / "out", "two entries of one name")


def test_a_folder_in_the_way_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    extract(zipped(tmp_path / "a.zip", FILES), tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(UserError, match="in the way"):
        extract(zipped(tmp_path / "b.zip", {"other": b"1"}), tmp_path / "out")
    assert contents(tmp_path / "out") == before


def refused(archive: Path, target: Path, words: str, **limits: int) -> None:
    with pytest.raises(UserError, match=words) as caught:
        extract(archive, target, **limits)
    assert str(archive) in str(caught.value) and "\n" not in str(caught.value)
    assert not target.exists() and not list(target.parent.glob(".*.tmp"))
