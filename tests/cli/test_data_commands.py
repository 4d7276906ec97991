"""`domainwise data list` and `data get`: what is said, what is fetched from the loopback, what is unpacked."""

import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from commands import Command, commands
from domainwise.data.catalogue import DATASETS
from domainwise.data.images.cache import decode
from domainwise.data.sources import digit_domains, downloads, photos, terra
from domainwise.data.sources.digits import MNIST, MNIST_FILES
from domainwise.data.sources.downloads import Download
from domainwise.data.sources.parts import Part
from download_server import DATA, Server
from small_datasets import write_terra


@pytest.fixture
def data(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """`domainwise data ...` with a data root of its own."""
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))

    return partial(commands(capsys), "data")


def serve(server: Server, part: Part, contents: dict[str, bytes]) -> Part:
    """The part, with its downloads from the loopback: as published, but for address, checksum and size."""

    def moved(download: Download) -> Download:
        name = Path(download.file).name
        server.files[name] = contents[name]
        md5 = hashlib.md5(contents[name]).hexdigest()
        return replace(download, url=f"{server.root}/{name}", checksum=f"md5:{md5}", size=len(contents[name]))

    return replace(part, downloads=tuple(moved(download) for download in part.downloads))


def use(monkeypatch: pytest.MonkeyPatch, name: str, *parts: Part) -> None:
    known = DATASETS[name]
    assert known.source is not None
    monkeypatch.setitem(DATASETS._things, name, replace(known, source=replace(known.source, parts=parts)))


# list


def test_every_dataset_is_listed_in_a_hundred_columns(data: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from domainwise.cli import data as commands

    monkeypatch.setattr(commands.console, "width", 100)
    shown = data("list")
    assert shown.status == 0 and shown.err == ""
    assert max(map(len, shown.out.splitlines())) <= 100
    for name in DATASETS:
        assert f"│ {name} " in shown.out
    assert "Comes with the installation" in shown.out and "to download by hand" in shown.out and "64 MB" in shown.out


def test_the_list_as_json_says_what_is_here(data: Command, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usps").mkdir(parents=True)
    (root / "usps" / "usps.t.bz2").touch()
    for domain in DATASETS["PACS"].domains:
        (root / "PACS" / "kfold" / domain).mkdir(parents=True)
    told = json.loads(data("list", "--json").out)
    assert told["root"] == str(root) and set(told["datasets"]) == set(DATASETS)
    pacs, digits = told["datasets"]["PACS"], told["datasets"]["Digits"]
    assert pacs["present"] and pacs["parts"][0]["found"][0] == "PACS/kfold/art_painting"
    assert (pacs["images"], len(pacs["classes"]), pacs["image_shape"]) == (9991, 7, [3, 224, 224])
    assert not digits["present"]
    found = {part["name"]: part["found"] for part in digits["parts"]}
    assert found == {"MNIST": [], "SVHN": [], "MNIST-M": [], "SYN": [], "USPS": ["usps/usps.t.bz2"]}
    assert told["datasets"]["BackgroundDigits"]["present"]
    for name, facts in told["datasets"].items():
        assert facts["terms"] and facts["page"].startswith("http") and facts["images"] and facts["domains"], name
        for part in facts["parts"]:
            assert part["places"] and (part["by_hand"] or DATASETS[name].source), name


# get


def test_files_are_fetched_and_only_those_that_are_missing(
    data: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = serve(server, MNIST, {f"{name}.gz": name.encode() for name in MNIST_FILES})
    use(monkeypatch, "ColoredMNIST", part)
    folder = tmp_path / "root" / "mnist"
    folder.mkdir(parents=True)
    (folder / f"{MNIST_FILES[0]}.gz").write_bytes(b"packed by somebody else")
    result = data("get", "ColoredMNIST")
    assert result.status == 0 and result.out == f"ColoredMNIST is in {tmp_path / 'root'}\n"
    assert len(server.asked) == 3 and (folder / f"{MNIST_FILES[0]}.gz").read_bytes() == b"packed by somebody else"
    assert (folder / f"{MNIST_FILES[3]}.gz").read_bytes() == MNIST_FILES[3].encode()
    assert data("get", "ColoredMNIST").status == 0 and len(server.asked) == 3


def test_one_part_that_fails_does_not_stop_the_others(
    data: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = DATASETS["Digits"].source.parts  # type: ignore[union-attr]
    contents = {Path(d.file).name: d.file.encode() for part in parts for d in part.downloads}
    served = [serve(server, part, contents) for part in parts]
    wrong = replace(served[1].downloads[0], checksum=f"md5:{'0' * 32}")
    use(monkeypatch, "Digits", served[0], replace(served[1], downloads=(wrong,)), *served[2:])
    result = data("get", "Digits")
    assert result.status == 2 and "test_32x32.mat: the file does not have the checksum" in result.err
    assert not (tmp_path / "root" / "svhn" / "test_32x32.mat").exists()
    for file in ("mnist_m.tar.gz", "syn/synth_test_32x32.mat", "usps/usps.t.bz2"):
        assert (tmp_path / "root" / file).read_bytes() == file.encode()


def packed(folder: Path, top: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        archive.add(folder, arcname=top)
    return stream.getvalue()


def test_terra_incognita_is_fetched_unpacked_and_converted(
    data: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_terra(tmp_path / "made")
    made = tmp_path / "made" / terra.FOLDER
    contents = {
        f"{terra.IMAGES}.tar.gz": packed(made / terra.IMAGES, terra.IMAGES),
        "eccv_18_annotations.tar.gz": packed(made / terra.ANNOTATIONS, terra.ANNOTATIONS),
    }
    use(monkeypatch, "TerraIncognita", serve(server, photos.TERRA, contents))
    assert data("get", "TerraIncognita", "--data-root", tmp_path / "new").status == 0
    folder = tmp_path / "new" / terra.FOLDER
    assert sorted(path.name for path in folder.iterdir()) == [terra.CONVERTED, terra.IMAGES, terra.ANNOTATIONS]
    assert len(DATASETS["TerraIncognita"].load(tmp_path / "new", 8).labels) == 41
    linked = next((folder / terra.CONVERTED).rglob("38-3.jpg"))
    assert linked.samefile(folder / terra.IMAGES / "38-3.jpg"), "no second copy of six gigabytes"


def test_an_archive_fetched_by_hand_is_unpacked(data: Command, tmp_path: Path) -> None:
    refused = data("get", "PACS")
    assert refused.is_one_line_error
    for words in (
        "PACS.zip in a browser from https://",
        f"put it into {tmp_path / 'root'}",
        "domainwise data get PACS",
    ):
        assert words in refused.err
    png = io.BytesIO()
    Image.new("RGB", (9, 9), (200, 0, 0)).save(png, "PNG")
    known = DATASETS["PACS"]
    with zipfile.ZipFile(tmp_path / "root" / "PACS.zip", "w") as archive:
        for domain in known.domains:
            for label in known.classes:
                archive.writestr(f"kfold/{domain}/{label}/pic_001.png", png.getvalue())
    assert data("get", "PACS").status == 0
    assert dict(known.load(tmp_path / "root", 8).sizes) == dict.fromkeys(known.domains, 7)


def test_a_page_saved_in_place_of_an_archive_is_said(data: Command, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "VLCS.tar.gz").write_text("<html>Google Drive can't scan this file for viruses</html>")
    result = data("get", "VLCS")
    assert result.status == 2 and "VLCS.tar.gz is damaged or not an archive" in result.err
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["VLCS.tar.gz"]


def test_an_interrupted_download_is_continued_by_the_same_command(
    data: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "Digits", serve(server, digit_domains.USPS, {"usps.t.bz2": DATA}))
    server.cut_after, server.cuts = 100_000, 1
    with monkeypatch.context() as patch:
        ask = downloads._request

        def ask_once(url: str, partial: Path, start: int, *rest: downloads.DownloadProgress) -> bool:
            if start:
                raise KeyboardInterrupt
            return ask(url, partial, start, *rest)

        patch.setattr(downloads, "_request", ask_once)
        stopped = data("get", "Digits")
    assert stopped.status == 130 and "the same command continues" in stopped.err
    assert data("get", "Digits").status == 0 and server.asked == [None, "bytes=100000-"]
    assert (tmp_path / "root" / "usps" / "usps.t.bz2").read_bytes() == DATA


def test_a_root_that_cannot_be_written_to_is_said(data: Command, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    result = data("get", "Digits")
    assert result.is_one_line_error and "cannot write to" in result.err and "--data-root" in result.err


def test_what_is_embedded_or_unknown(data: Command) -> None:
    assert data("get", "BackgroundDigits").out == "BackgroundDigits comes with the installation\n"
    result = data("get", "PAC")
    assert result.status == 2 and "did you mean 'PACS'?" in result.err


def test_every_download_is_by_https_or_has_a_checksum_and_stays_below_the_root() -> None:
    seen = 0
    for name, known in DATASETS.items():
        for part in known.source.parts if known.source else ():
            assert part.downloads or part.by_hand, f"{name}: no way to get {part.name}"
            for download in part.downloads:
                kind, _, digest = download.checksum.partition(":")
                assert len(digest) == {"md5": 32, "sha256": 64}[kind] and int(digest, 16) >= 0
                for path in (download.file, download.unpack):
                    assert not Path(path).is_absolute() and ".." not in Path(path).parts
                seen += 1
    assert seen >= 10


def test_the_page_on_datasets_tells_the_facts_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    rows = {cells[1].strip(): cells for line in page.splitlines() if len(cells := line.split("|")) == 10}
    for name, known in DATASETS.items():
        if name.endswith("-embedded"):
            continue
        _, _, domains, classes, images, steps, network, augmentation, selection, _ = map(str.strip, rows[name])
        assert all(domain in domains for domain in known.domains) and int(classes) == len(known.classes), name
        assert known.source is not None and images.startswith(f"{known.source.images:,}, "), name
        assert steps == f"{known.steps}, {known.evaluate_every}", name
        assert (network, augmentation, selection) == (known.network, known.augmentation, known.selection), name
        for part in known.source.parts:
            assert all(file in page for file, _ in part.archives[:1]), "the file to take"


# the cache


def test_cached_images_are_listed_and_cleared(
    domainwise: Command, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, old = tmp_path / "new", tmp_path / "root" / "cache"
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "root"))
    for folder in (root, old):
        monkeypatch.setenv("DOMAINWISE_CACHE", str(folder))
        decode(sorted(photos.rglob("*.png")), 8, label="photos")
    monkeypatch.setenv("DOMAINWISE_CACHE", str(root))
    told = json.loads(domainwise("data", "cache", "list", "--json").out)
    (cached,) = told["caches"]
    assert told["folder"] == str(root) and cached["of"] == str(photos) and cached["sizes"] == [8]
    assert cached["bytes"] >= 36 * 3 * 64 and told["unused"]["folder"] == str(old) and told["unused"]["bytes"] > 0
    shown = domainwise("data", "cache", "list").out
    assert cached["name"] in shown and f"domainwise data cache clear --cache {old}" in " ".join(shown.split())
    refused = domainwise("data", "cache", "clear")
    assert refused.status == 2 and "nothing was removed" in refused.err and "(--yes)" in refused.err
    assert domainwise("data", "cache", "clear", "nothing", "--yes").is_one_line_error
    assert domainwise("data", "cache", "clear", "photos", "--yes").status == 0
    assert json.loads(domainwise("data", "cache", "list", "--json").out)["caches"] == []
    assert domainwise("data", "cache", "clear", "--yes", "--cache", old).status == 0
    assert not list(old.iterdir())
