"""Images decoded at their own sizes: whole or not at all, one after another, listed and cleared."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from commands import Command
from domainwise.core.errors import UserError
from domainwise.data.images import cache as caching
from domainwise.data.images import decode as decoding
from domainwise.data.images.cache import Decoded, decode
from domainwise.data.images.cache_folder import cached_images
from domainwise.data.images.decode import BadImage, read_original
from domainwise.data.images.parallel import FEW
from small_datasets import picture

NAME = "domainbed-original-size"
SIZE = 28
"""Of the network's images; short sides of originals are at most 32."""
SIZES = ((30, 30), (32, 43), (43, 32), (32, 64), (13, 17), (28, 28), (32, 32), (20, 40))
"""Heights and widths of originals."""
CPU = torch.device("cpu")


def smooth(height: int, width: int, seed: int = 0) -> Image.Image:
    return picture(seed, 5, 5).resize((width, height), Image.Resampling.BICUBIC)


def files_of(folder: Path, sizes: tuple[tuple[int, int], ...] = SIZES, count: int = len(SIZES)) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:04d}.png" for number in range(count)]
    for number, file in enumerate(files):
        picture(number, *sizes[number % len(sizes)]).save(file)
    return files


def pixels_of(file: Path) -> Tensor:
    return torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1)


def images_of(found: Decoded) -> list[Tensor]:
    parts = found.images.split([3 * height * width for height, width in found.sizes])
    return [part.view(3, *size) for part, size in zip(parts, found.sizes, strict=True)]


# decoding


@pytest.mark.parametrize("size", [(13, 17), (32, 50), (50, 32), (32, 64)])
def test_an_image_up_to_the_limit_is_kept_as_it_is(tmp_path: Path, size: tuple[int, int]) -> None:
    picture(1, *size).save(tmp_path / "one.png")
    assert (read_original(tmp_path / "one.png", 32) == pixels_of(tmp_path / "one.png").numpy()).all()


@pytest.mark.parametrize(("size", "kept"), [((64, 80), (32, 40)), ((100, 33), (64, 32)), ((40, 41), (32, 33))])
def test_a_larger_one_is_reduced_to_the_limit(tmp_path: Path, size: tuple[int, int], kept: tuple[int, int]) -> None:
    smooth(*size).save(tmp_path / "one.png")
    found = read_original(tmp_path / "one.png", 32)
    assert found.shape == (3, *kept)
    height = min(size[0], 2 * size[1])
    top = (size[0] - height) // 2
    middle = Image.open(tmp_path / "one.png").crop((0, top, size[1], top + height))
    assert (found == np.array(middle.resize(kept[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)).all()


def test_of_a_very_long_one_the_middle_is_kept(tmp_path: Path) -> None:
    picture(1, 10, 57).save(tmp_path / "wide.png")
    assert (read_original(tmp_path / "wide.png", 32) == pixels_of(tmp_path / "wide.png")[:, :, 18:38].numpy()).all()


def test_it_is_upright_and_rgb_and_a_bad_one_has_a_reason(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[decoding.ORIENTATION] = 6
    picture(5, 8, 12).save(tmp_path / "turned.png", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "turned.png"))
    assert (read_original(tmp_path / "turned.png", 32) == np.asarray(upright).transpose(2, 0, 1)).all()
    Image.fromarray(np.full((8, 9), 0x0400, np.uint16)).save(tmp_path / "deep.png")
    assert (read_original(tmp_path / "deep.png", 32, (0, 0x0800)) == 128).all()
    (tmp_path / "empty.png").touch()
    with pytest.raises(BadImage, match="the file is empty"):
        read_original(tmp_path / "empty.png", 32)


@pytest.mark.parametrize("count", [7, FEW + 20], ids=["here", "by helpers"])
def test_images_of_all_sizes_are_kept_one_after_another(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(tmp_path / "photos", count=count)[::-1]
    for _ in range(2):
        found = decode(files, 32, cache=tmp_path / "cache", original=True)
        assert all(torch.equal(image, pixels_of(file)) for image, file in zip(images_of(found), files, strict=True))
        monkeypatch.setattr(caching, "decode_all", None)  # the second time nothing is decoded


@pytest.mark.parametrize("bad", [[0], [4], [1, 2], [0, 2, 4], [0, 1, 2, 3, 4]])
def test_bad_files_leave_no_gap(tmp_path: Path, bad: list[int]) -> None:
    files = files_of(tmp_path / "photos", count=5)
    for number in bad:
        files[number].write_bytes(b"")
    for _ in range(2):
        found = decode(files, 32, cache=tmp_path / "cache", original=True)
        assert list(found.bad) == bad and set(found.bad.values()) == {"the file is empty"}
        good = [pixels_of(file) for number, file in enumerate(files) if number not in bad]
        assert all(torch.equal(image, expected) for image, expected in zip(images_of(found), good, strict=True))


# the cache


def entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("*/*") if path.name not in (".lock", ".source"))


@pytest.mark.parametrize("damage", ["shortened", "one byte", "no record", "record of another form", "one size"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    files = files_of(tmp_path / "photos")
    decode(files, 32, cache=tmp_path / "cache", original=True)
    (entry,) = entries(tmp_path / "cache")
    images, record = entry / "images.bin", json.loads((entry / "record.json").read_text())
    if damage == "shortened":
        os.truncate(images, 10)
    elif damage == "one byte":
        images.write_bytes(images.read_bytes()[:-1] + b"x")
    elif damage == "no record":
        (entry / "record.json").unlink()
    elif damage == "one size":
        record["sizes"][1] = record["sizes"][1][::-1]
        (entry / "record.json").write_text(json.dumps(record))
    else:
        (entry / "record.json").write_text(json.dumps({"files": len(files), "bad": {}}))
    found = decode(files, 32, cache=tmp_path / "cache", original=True)
    assert torch.equal(images_of(found)[-1], pixels_of(files[-1])) and tuple(found.sizes[1]) == SIZES[1]
    assert ("are decoded again" in caplog.text) == (damage != "no record")


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, decode_all = files_of(tmp_path / "photos"), caching.decode_all

    def interrupted(*arguments: object, **options: object) -> object:
        yield next(decode_all(*arguments, **options))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(caching, "decode_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decode(files, 32, cache=tmp_path / "cache", original=True)
    assert entries(tmp_path / "cache") == []
    whole = len(files)
    assert len(decode(files, 32, cache=tmp_path / "cache", original=True).sizes) == whole
    (entry,) = entries(tmp_path / "cache")
    remains = entry.rename(entry.with_name(f".{entry.name}.0123abcd.tmp"))  # as a killed process leaves it
    assert len(cached_images(tmp_path / "cache")) == 1 and cached_images(tmp_path / "cache")[0].limits == ()
    assert len(decode(files, 32, cache=tmp_path / "cache", original=True).sizes) == whole
    assert entries(tmp_path / "cache") == [entry] and not remains.exists()


@pytest.mark.parametrize("when", ["decoding", "closing gaps"])
def test_a_disk_that_becomes_full_is_a_users_error(tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, pwrite, room = files_of(tmp_path / "photos"), os.pwrite, [100, 100]

    def full(descriptor: int, content: bytes, place: int) -> int:
        """As a disk does it: takes what it has room for, and nothing more the next time."""
        if not (count := min(len(content), room.pop() if room else 0)):
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, content[:count], place)

    with monkeypatch.context() as patch:
        if when == "decoding":
            patch.setattr(os, "pwrite", full)
        else:
            patch.setattr(caching, "write_at", lambda *_: full(0, b"", 0))
        with pytest.raises(UserError, match=r"cannot write the decode cache to .*: No space left on device"):
            decode(files, 32, cache=tmp_path / "cache", original=True)
    assert entries(tmp_path / "cache") == []


def test_a_write_that_is_cut_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, pwrite = files_of(tmp_path / "photos"), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, place: pwrite(descriptor, content[:100], place))
    found = decode(files, 32, cache=tmp_path / "cache", original=True)
    assert all(torch.equal(image, pixels_of(file)) for image, file in zip(images_of(found), files, strict=True))


def test_both_forms_are_listed_replaced_and_cleared(tmp_path: Path) -> None:
    cache, files = tmp_path / "cache", files_of(tmp_path / "photos")
    for size, original in ((8, False), (32, True), (16, False), (64, True)):
        decode(files, size, which="photos", cache=cache, original=original)
    (one,) = cached_images(cache)
    assert (one.sizes, one.limits, len(entries(cache))) == ((8, 16), (32, 64), 4)
    decode(files[1:], 32, which="photos", cache=cache, original=True)
    (one,) = cached_images(cache)
    assert (one.sizes, one.limits) == ((), (32,)), "the folder has changed"
    one.clear()
    assert not one.folder.exists()


def test_the_list_says_up_to_which_size(tmp_path: Path, domainwise: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    files = files_of(tmp_path / "photos")
    for size, original in ((8, False), (32, True)):
        decode(files, size, label="photos", original=original)
    assert "8, up to 32" in domainwise("data", "cache", "list").out
    (told,) = json.loads(domainwise("data", "cache", "list", "--json").out)["caches"]
    assert (told["sizes"], told["largest_short_sides"]) == ([8], [32])
    assert domainwise("data", "cache", "clear", "photos", "--yes").status == 0
    assert "no decoded images" in domainwise("data", "cache", "list").out
