"""The decode cache: right pixels, once, whole or absent, shared, and renewed when the files change."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from domainwise.core.errors import UserError
from domainwise.data.images import cache as caching
from domainwise.data.images import decode as decoding
from domainwise.data.images import parallel, progress
from domainwise.data.images.cache import bad_images, decode
from domainwise.data.images.cache_folder import cache_root, cached_images, chosen
from domainwise.data.images.decode import BadImage, facts, read
from processes import all_gone, quick_context
from small_datasets import picture

SIZE = 16


def files_in(folder: Path, count: int, suffix: str = ".png") -> list[Path]:
    folder.mkdir(exist_ok=True)
    files = [folder / f"{number:04d}{suffix}" for number in range(count)]
    for number, file in enumerate(files):
        picture(number).save(file)
    return files


def decoded(files: list[Path], size: int, *, label: str = "images", cache: Path | None = None) -> torch.Tensor:
    """All images; a file that cannot be decoded is an error."""
    result = decode(files, size, label=label, cache=cache)
    if result.bad:
        raise bad_images(files, result.bad)
    return result.images


def by_hand(file: Path, size: int = SIZE) -> torch.Tensor:
    image = Image.open(file).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("*/*") if path.name not in (".lock", ".source"))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each build decoded."""
    builds: list[int] = []
    decode_all = caching.decode_all

    def counting(files: list[Path], *arguments: object, **options: object) -> object:
        builds.append(len(files))
        return decode_all(files, *arguments, **options)

    monkeypatch.setattr(caching, "decode_all", counting)
    return builds


# what is decoded


@pytest.mark.parametrize("suffix", decoding.SUFFIXES)
def test_every_suffix_is_read(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"image{suffix}"
    image = picture(1)
    if suffix == ".pgm":
        image = image.convert("L")
    elif suffix == ".pbm":
        image = image.convert("1")
    image.save(file)
    assert torch.equal(torch.from_numpy(read(file, SIZE)), by_hand(file))


def test_transparent_parts_show_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    assert (read(tmp_path / "clear.png", 4) == 255).all()
    palette = Image.new("P", (8, 8), 3)
    palette.putpalette([0] * 768)
    palette.info["transparency"] = 3
    palette.save(tmp_path / "palette.gif", transparency=3)
    assert (read(tmp_path / "palette.gif", 4) == 255).all()
    assert facts(tmp_path / "palette.gif")["alpha"]


def test_grey_and_cmyk_become_rgb(tmp_path: Path) -> None:
    Image.new("L", (8, 8), 77).save(tmp_path / "grey.png")
    assert (read(tmp_path / "grey.png", 4) == 77).all()
    Image.fromarray(np.full((8, 8), 0x4D00, np.uint16)).save(tmp_path / "deep.png")
    assert (read(tmp_path / "deep.png", 4) == 0x4D).all(), "16 bits are scaled, not clipped"
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "print.jpg")
    red = read(tmp_path / "print.jpg", 4)
    assert (red[0] > 250).all() and (red[1:] < 5).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_cameras_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture(5, 8, 16).save(tmp_path / "turned.png", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "turned.png"))
    expected = np.asarray(upright.resize((8, 8), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert (read(tmp_path / "turned.png", 8) == expected).all()
    assert facts(tmp_path / "turned.png")["turned"] == (orientation != 1)


def test_a_huge_jpeg_is_decoded_at_a_fraction_and_looks_the_same(tmp_path: Path) -> None:
    image = picture(3, 8, 8).resize((1024, 768), Image.Resampling.BICUBIC)
    image.save(tmp_path / "huge.jpg", quality=95)
    assert np.abs(read(tmp_path / "huge.jpg", SIZE).astype(int) - by_hand(tmp_path / "huge.jpg").numpy()).max() <= 2


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


BREAKAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (truncate, "truncated|Truncated|broken"),
    "empty": (lambda file: file.write_bytes(b""), "the file is empty"),
    "text": (lambda file: file.write_text("not an image at all"), "not an image of a known format"),
    "float": (
        lambda file: Image.fromarray(np.zeros((4, 4), np.float32)).save(file, format="TIFF"),
        "floating-point pixels",
    ),
    "gone": (lambda file: file.unlink(), "No such file"),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_bad_image_has_a_reason(tmp_path: Path, breakage: str) -> None:
    (file,) = files_in(tmp_path / "photos", 1)
    spoil, reason = BREAKAGES[breakage]
    spoil(file)
    for look in (facts, lambda file: read(file, SIZE)):
        with pytest.raises(BadImage, match=reason):
            look(file)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".gif", ".tif"])
def test_whatever_is_in_a_file_it_is_an_image_or_a_bad_one(tmp_path: Path, suffix: str) -> None:
    file, random = tmp_path / f"image{suffix}", np.random.default_rng(0)
    picture(3).save(file)
    whole = np.frombuffer(file.read_bytes(), np.uint8)
    outcomes = set()
    for number in range(25):
        spoilt = whole.copy()
        spoilt[random.integers(0, min(len(whole), 200), 1 + number)] = random.integers(0, 256, 1 + number)
        file.write_bytes(spoilt[: random.integers(1, len(whole)) if number % 3 else None].tobytes())
        try:
            assert read(file, SIZE).shape == (3, SIZE, SIZE)
            outcomes.add("image")
        except BadImage as error:
            assert str(error) and "\n" not in str(error)
            outcomes.add("bad")
    assert "bad" in outcomes


# once


@pytest.mark.parametrize("count", [5, parallel.FEW + 20], ids=["here", "by helpers"])
def test_decoded_once_in_the_order_of_the_files(tmp_path: Path, count: int, counted: list[int]) -> None:
    files = files_in(tmp_path / "photos", count)[::-1]
    images = decoded(files, SIZE, cache=tmp_path / "cache")
    assert images.dtype == torch.uint8 and images.shape == (count, 3, SIZE, SIZE)
    assert all(torch.equal(image, by_hand(file)) for image, file in zip(images, files, strict=True))
    assert torch.equal(decoded(files, SIZE, cache=tmp_path / "cache"), images)
    assert counted == [count]


def test_each_size_has_its_own_entry(tmp_path: Path, counted: list[int]) -> None:
    files = files_in(tmp_path / "photos", 3)
    for size in (8, 16, 8, 16):
        assert decoded(files, size, cache=tmp_path / "cache").shape == (3, 3, size, size)
    assert counted == [3, 3] and len(entries(tmp_path / "cache")) == 2


def change(file: Path) -> None:
    before = file.stat()
    picture(99).save(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))


def test_a_changed_file_is_decoded_again_and_the_old_entries_go(tmp_path: Path, counted: list[int]) -> None:
    files = files_in(tmp_path / "photos", 3)
    for size in (8, SIZE):
        old = decoded(files, size, cache=tmp_path / "cache")
    kept = old.clone()
    change(files[1])
    new = decoded(files, SIZE, cache=tmp_path / "cache")
    assert torch.equal(new[1], by_hand(files[1])) and not torch.equal(new[1], old[1])
    assert torch.equal(old, kept), "what somebody still reads stays readable"
    assert len(counted) == 3 and len(entries(tmp_path / "cache")) == 1


def test_collections_do_not_replace_one_another_unless_they_are_one(tmp_path: Path) -> None:
    files = files_in(tmp_path / "photos", 6)
    decoded(files[:3], SIZE, cache=tmp_path / "cache")
    decoded(files[3:], SIZE, cache=tmp_path / "cache")
    assert len(entries(tmp_path / "cache")) == 2
    for part in (files[:3], files[:4]):
        decode(part, SIZE, which="one growing folder", cache=tmp_path / "cache")
    assert len(entries(tmp_path / "cache")) == 3


# bad files


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    files = files_in(tmp_path / "photos", 4)
    truncate(files[2])
    with pytest.raises(UserError, match=rf"cannot decode {files[2]}: .*truncated.*leave such images out$"):
        decoded(files, SIZE, cache=tmp_path / "cache")
    truncate(files[3])
    with pytest.raises(UserError, match=r"0002.png: .* \(and 1 more\)"):
        decoded(files, SIZE, cache=tmp_path / "cache")


@pytest.mark.parametrize("bad", [[0], [4], [1, 2], [0, 2, 4], [0, 1, 2, 3, 4]])
def test_bad_files_are_left_out_and_the_rest_stays_in_order(tmp_path: Path, bad: list[int], counted: list[int]) -> None:
    files = files_in(tmp_path / "photos", 5)
    for number in bad:
        files[number].write_bytes(b"")
    for _ in range(2):
        found = decode(files, SIZE, cache=tmp_path / "cache")
        assert list(found.bad) == bad and set(found.bad.values()) == {"the file is empty"}
        good = [by_hand(file) for number, file in enumerate(files) if number not in bad]
        assert len(found.images) == len(good)
        assert all(torch.equal(image, expected) for image, expected in zip(found.images, good, strict=True))
    assert len(counted) == 1, "bad files are remembered too"


def test_an_image_that_crashes_its_decoder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_in(tmp_path / "photos", parallel.FEW + 10)
    program = tmp_path / "fragile.py"
    program.write_text(
        f"import os, sys; sys.argv = {[decoding.__file__]!r}\n"
        f"source = open({decoding.__file__!r}).read()\n"
        "source = source.replace('def read(', 'def read(file, size, **further):\\n"
        '    if "0017" in str(file): os.abort()\\n    return whole(file, size, **further)\\n\\ndef whole(\')\n'
        "exec(compile(source, 'fragile', 'exec'))\n"
    )
    monkeypatch.setattr(decoding, "__file__", str(program))
    found = decode(files, SIZE, cache=tmp_path / "cache")
    assert found.bad == {17: "the decoder crashed on it"}
    assert torch.equal(found.images[17], by_hand(files[18]))


# whole or absent


@pytest.mark.parametrize("damage", ["shortened", "no record", "not a record"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str, counted: list[int]) -> None:
    files = files_in(tmp_path / "photos", 3)
    decoded(files, SIZE, cache=tmp_path / "cache")
    (entry,) = entries(tmp_path / "cache")
    if damage == "shortened":
        os.truncate(entry / "images.bin", 10)
    elif damage == "no record":
        (entry / "record.json").unlink()
    else:
        (entry / "record.json").write_text(json.dumps([1]))
    assert torch.equal(decoded(files, SIZE, cache=tmp_path / "cache")[2], by_hand(files[2]))
    assert len(counted) == 2


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_in(tmp_path / "photos", 3)

    def interrupted(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(caching, "decode_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoded(files, SIZE, cache=tmp_path / "cache")
    assert entries(tmp_path / "cache") == []
    assert len(decoded(files, SIZE, cache=tmp_path / "cache")) == 3


def build_slowly(photos: Path, cache: Path, pause: float, said: "Connection[object, object]") -> None:
    """A process's life: tells that it builds, if it does, and what it found."""
    decode_all = caching.decode_all

    def slowly(*arguments: Any, **options: Any) -> Iterator[object]:
        said.send("building")
        for answer in decode_all(*arguments, **options):
            time.sleep(pause)
            yield answer

    caching.decode_all = slowly  # type: ignore[assignment]
    said.send(float(decoded(sorted(photos.iterdir()), SIZE, cache=cache).double().mean()))
    said.close()


@contextmanager
def builders(tmp_path: Path, pause: float, number: int = 1) -> Iterator[list[tuple[Any, "Connection[object, object]"]]]:
    context = quick_context()
    started = []
    for _ in range(number):
        ours, theirs = context.Pipe()
        arguments = (tmp_path / "photos", tmp_path / "cache", pause, theirs)
        process = context.Process(target=build_slowly, args=arguments)
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        yield started
    finally:
        for process, _ in started:
            process.kill()
            process.join()


def test_a_killed_build_leaves_no_entry_and_its_remains_are_cleared(tmp_path: Path) -> None:
    files = files_in(tmp_path / "photos", 3)
    with builders(tmp_path, pause=60) as ((_, said),):
        assert said.recv() == "building"
    (remains,) = entries(tmp_path / "cache")
    assert remains.suffix == ".tmp"
    decoded(files, SIZE, cache=tmp_path / "cache")
    (entry,) = entries(tmp_path / "cache")
    assert (entry / "record.json").is_file()


def test_two_processes_build_once(tmp_path: Path) -> None:
    files_in(tmp_path / "photos", 4)
    with builders(tmp_path, pause=0.2, number=2) as both:
        words = [said.recv() for _, said in both]
        assert sorted(map(type, words), key=str) == [float, str], "one builds, the other waits"
        builder = both[words.index("building")][1]
        assert builder.recv() in words


def test_helpers_end_with_their_starter(tmp_path: Path) -> None:
    files_in(tmp_path / "photos", parallel.FEW + 40)
    with builders(tmp_path, pause=60) as ((process, said),):
        assert said.recv() == "building"
        deadline = time.monotonic() + 20
        while not (helpers := _children(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert helpers
    assert all_gone(helpers)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# where


def test_the_cache_lies_in_the_users_cache_folder_or_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOMAINWISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path))
    assert cache_root() == tmp_path / "home" / "domainwise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path("~/.cache/domainwise").expanduser()
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_root() == Path("~/Library/Caches/domainwise").expanduser()
    monkeypatch.setenv("DOMAINWISE_CACHE", "~/somewhere")
    assert cache_root() == Path("~/somewhere").expanduser()


def test_a_new_cache_is_announced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress, "announce", said.append)
    monkeypatch.setattr(caching, "WORTH_A_LINE", 1)
    files = files_in(tmp_path / "photos", 3)
    for _ in range(2):
        decode(files, SIZE, label="photos", cache=tmp_path / "cache")
    (line,) = said
    assert line.startswith("decoded images of photos, 0 MB, are kept for later runs in ") and str(tmp_path) in line


def test_what_is_cached_is_described_and_cleared_without_touching_other_files(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert cached_images(cache) == []
    for name in ("photos", "paintings"):
        files = files_in(tmp_path / name, 3)
        for size in (8, SIZE):
            decode(files, size, label=name, which=name, cache=cache)
    (cache / "photos-of-mine").mkdir()
    (cache / "notes.txt").touch()
    both = cached_images(cache)
    assert {(one.source, one.sizes) for one in both} == {
        (str(tmp_path / name), (8, SIZE)) for name in ("photos", "paintings")
    }
    assert all(one.bytes >= 3 * 3 * (8 * 8 + SIZE * SIZE) and one.used > 0 for one in both)
    (paintings,) = chosen(both, "paintings")
    (paintings.folder / "mine.txt").touch()
    paintings.clear()
    assert [one.source for one in cached_images(cache)] == [str(tmp_path / "photos")]
    assert (paintings.folder / "mine.txt").exists(), "not ours"
    (photos,) = cached_images(cache)
    photos.clear()
    assert not photos.folder.exists() and sorted(path.name for path in cache.iterdir()) == sorted(
        [paintings.folder.name, "notes.txt", "photos-of-mine"]
    )
    with pytest.raises(UserError, match="unknown cache"):
        chosen(both, "nothing")


def test_a_cache_that_is_being_built_is_not_cleared(tmp_path: Path) -> None:
    decode(files_in(tmp_path / "photos", 3), SIZE, cache=tmp_path / "cache")
    (one,) = cached_images(tmp_path / "cache")
    with (one.folder / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is decoding images"):
            one.clear()
    assert cached_images(tmp_path / "cache") == [one]


def test_a_cache_that_cannot_be_written_is_a_users_error(tmp_path: Path) -> None:
    files = files_in(tmp_path / "photos", 1)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UserError, match="set DOMAINWISE_CACHE"):
        decoded(files, SIZE, cache=tmp_path / "cache")


def test_no_room_is_a_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_in(tmp_path / "photos", 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"no room for 0\.0 GiB of decoded images in .* a smaller image size$"):
        decoded(files, SIZE, cache=tmp_path / "cache")


def test_a_disk_that_fails_on_the_way_is_a_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_in(tmp_path / "photos", 2)

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(decoding, "_write_row", failing)
    with pytest.raises(UserError, match=r"cannot write the decode cache to .*: Input/output error"):
        decoded(files, SIZE, cache=tmp_path / "cache")
    assert entries(tmp_path / "cache") == []


# progress


def test_the_library_shows_nothing_and_reports_its_progress_to_the_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = files_in(tmp_path / "photos", parallel.FEW + 1)
    decoded(files, SIZE, cache=tmp_path / "silent")
    assert capfd.readouterr() == ("", "")
    reports: list[object] = []

    @contextmanager
    def show(description: str, total: int) -> Iterator[Callable[[int], None]]:
        reports.extend((description, total))
        yield reports.append
        reports.append("closed")

    monkeypatch.setattr(progress, "show", show)
    decoded(files, SIZE, label="photos", cache=tmp_path / "shown")
    description, total, *counts, end = reports
    assert description == f"decoding photos to {SIZE} pixels, once" and total == len(files) and end == "closed"
    assert sum(counts) == len(files)
