"""`domainwise data check`: what it finds, what it calls a problem, and what it leaves alone."""

import base64
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from commands import command
from domainwise.core.errors import UserError
from domainwise.data.images.decode import _thumbnail
from domainwise.data.sources.check import Check, check
from domainwise.data.sources.digits import embedded_digits
from domainwise.data.sources.folder import image_folder
from domainwise.data.sources.near_duplicates import near_pairs
from domainwise.protocol.reading import Reading
from small_datasets import CLASSES, DOMAINS, make_folder, picture


def tell(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `domainwise data check`."""
    return command(capsys, "data", "check", *arguments)


def trains(photos: Path) -> bool:
    try:
        data = image_folder(photos).load(image_size=8)
        for domain in data.domains:
            data.split(domain, 0)
    except UserError:
        return False
    return True


# what is found


def test_a_good_folder(photos: Path) -> None:
    found = check(photos)
    assert found.counts == {domain: dict.fromkeys(CLASSES, 6) for domain in DOMAINS}
    assert found.sizes == {"smallest": [30, 20], "median": [30, 20], "largest": [30, 20]}
    assert (found.problems, found.warnings, found.notes, found.duplicates) == ([], [], [], [])
    assert trains(photos)


def spoil(photos: Path) -> None:
    (photos / "lab" / "dog" / "002.png").write_bytes(b"")


def starve(photos: Path) -> None:
    for file in sorted((photos / "lab").rglob("*.png"))[:-4]:
        file.unlink()


def starve_of_readable(photos: Path) -> None:
    for file in sorted((photos / "lab").rglob("*.png"))[:-4]:
        file.write_bytes(b"")


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (spoil, "cannot decode lab/dog/002.png: the file is empty"),
        (starve, "domain lab has 4 readable images; it needs at least 5"),
        (starve_of_readable, "domain lab has 4 readable images; it needs at least 5"),
    ],
)
def test_what_stops_a_training_is_a_problem(photos: Path, harm: Any, problem: str) -> None:
    harm(photos)
    assert problem in check(photos).problems
    assert not trains(photos)


def test_one_class_is_a_problem(tmp_path: Path) -> None:
    assert check(make_folder(tmp_path / "photos", classes=("cat",))).problems == [
        "there is one class only (cat): nothing to tell apart"
    ]


def missing(photos: Path) -> None:
    shutil.rmtree(photos / "street" / "cat")


def single(photos: Path) -> None:
    for domain in DOMAINS[1:]:
        shutil.rmtree(photos / domain)


def uneven(photos: Path) -> None:
    for number in range(61):
        picture(1000 + number).save(photos / "lab" / "cat" / f"more{number}.png")


def capitals(photos: Path) -> None:
    (photos / "lab" / "cat").rename(photos / "lab" / "Cat")


def copy(photos: Path, source: str, target: str) -> None:
    shutil.copy(photos / source, photos / target)


@pytest.mark.parametrize(
    ("harm", "warnings"),
    [
        (missing, ["domain street has no images of cat"]),
        (single, ["there is one domain only: none can be left out to judge a model on"]),
        (uneven, ["domain lab is uneven: 67 of cat, 6 of dog"]),
        (
            lambda photos: copy(photos, "lab/cat/000.png", "street/cat/x.png"),
            ["1 image in several domains: .*, e.g. lab/cat/000.png and street/cat/x.png"],
        ),
        (
            lambda photos: copy(photos, "lab/cat/000.png", "lab/cat/x.png"),
            ["1 image several times in one domain: .*, e.g. lab/cat/000.png and lab/cat/x.png"],
        ),
        (
            lambda photos: copy(photos, "lab/cat/000.png", "street/dog/x.png"),
            ["1 image in several domains: ", "1 image in several classes: one of their labels is wrong, e.g. lab/cat"],
        ),
        (
            capitals,
            [
                "domain clinic has no images of Cat",
                "domain lab has no images of cat",
                "domain street has no images of Cat",
                "classes differ only in capital letters: Cat, cat",
            ],
        ),
    ],
)
def test_what_a_training_bears_is_a_warning(photos: Path, harm: Any, warnings: list[str]) -> None:
    harm(photos)
    found = check(photos)
    assert found.problems == []
    assert len(found.warnings) == len(warnings)
    for told, expected in zip(found.warnings, warnings, strict=True):
        assert re.match(expected, told)
    assert trains(photos)


def test_the_same_pixels_in_another_file_are_a_duplicate(photos: Path) -> None:
    Image.open(photos / "lab" / "cat" / "000.png").save(photos / "street" / "cat" / "x.bmp")
    (group,) = check(photos).duplicates
    assert [str(p.file.relative_to(photos)) for p in group] == ["lab/cat/000.png", "street/cat/x.bmp"]


def test_a_palette_is_part_of_the_picture(photos: Path) -> None:
    """The same indices by other palettes are other pictures; the same colours are one picture, however stored."""
    indices = Image.fromarray(np.random.default_rng(0).integers(0, 4, (20, 30), np.uint8))
    colours = ([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9], [7, 7, 7, 0, 0, 99, 99, 0, 0, 0, 99, 0])
    for number, palette in enumerate(colours):
        image = indices.copy()
        image.putpalette(palette)
        image.save(photos / "lab" / "cat" / f"palette{number}.png")
        image.save(photos / "lab" / "cat" / f"palette{number}.gif")
        image.convert("RGB").save(photos / "street" / "cat" / f"colours{number}.png")
        image.convert("RGBA").save(photos / "clinic" / "cat" / f"opaque{number}.png")
    groups = [[str(p.file.relative_to(photos)) for p in group] for group in check(photos).duplicates]
    assert groups == [
        [
            f"clinic/cat/opaque{n}.png",
            f"lab/cat/palette{n}.gif",
            f"lab/cat/palette{n}.png",
            f"street/cat/colours{n}.png",
        ]
        for n in range(2)
    ]


def test_a_turned_picture_is_the_same_picture(photos: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(700).save(photos / "lab" / "cat" / "turned.png", exif=exif)
    picture(700).transpose(Image.Transpose.ROTATE_270).save(photos / "street" / "cat" / "upright.png")
    picture(700).save(photos / "clinic" / "cat" / "lying.png")
    (group,) = check(photos).duplicates
    assert [p.file.name for p in group] == ["turned.png", "upright.png"]


def test_what_decoding_changes_is_noted(photos: Path) -> None:
    folder = photos / "lab" / "cat"
    Image.new("L", (9, 9)).save(folder / "grey.png")
    Image.new("RGBA", (300, 200)).save(folder / "clear.png")
    Image.new("CMYK", (8, 8)).save(folder / "print.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(7).save(folder / "turned.jpg", exif=exif)
    (photos / "readme.txt").touch()
    (photos / "new camera" / "cat").mkdir(parents=True)
    found = check(photos)
    assert found.warnings == ["ignored 2 folders without images: fill or remove: new camera/cat, new camera"]
    assert found.notes == [
        "ignored 1 item that cannot be an image: readme.txt",
        "1 image grey: repeated to three channels",
        "1 image with transparency: shown on white",
        "1 image CMYK: converted to RGB",
        "1 image turned upright as their EXIF orientation says",
    ]
    assert found.sizes == {"smallest": [8, 8], "median": [30, 20], "largest": [300, 200]}


def deep(largest: int) -> Image.Image:
    """16-bit grey whose brightest pixel has this value."""
    values = np.random.default_rng(largest).integers(0, largest + 1, (20, 30), dtype=np.uint16)
    values[3, 4] = largest
    return Image.fromarray(values)


@pytest.mark.parametrize(("largest", "suffix", "white"), [(4095, ".png", 4095), (1000, ".tif", 1023), (0, ".png", 1)])
def test_12_bit_data_in_16_bit_files_is_a_warning(photos: Path, largest: int, suffix: str, white: int) -> None:
    deep(largest).save(photos / "lab" / "cat" / f"scan{suffix}")
    found = check(photos)
    assert found.notes == ["1 image grey: repeated to three channels", "1 image 16-bit: the upper 8 bits are used"]
    (warning,) = found.warnings
    assert f"below 4096 (at most {largest} of 65535)" in warning
    assert f"with the window 0:{white}, here and in every training" in warning
    helped = check(photos, Reading.of(window=f"0:{white}"))
    assert not helped.warnings and f"1 image 16-bit: greys 0 to {white} become 0 to 255" in helped.notes


def test_16_bit_files_that_use_their_bits_are_noted_only(photos: Path) -> None:
    """One bright image is enough: the scale of a folder is not that of its darkest image."""
    for largest in (200, 4096):
        deep(largest).save(photos / "lab" / "cat" / f"scan{largest}.png")
    found = check(photos)
    assert found.warnings == [] and "2 images 16-bit: the upper 8 bits are used" in found.notes


def test_many_images_are_checked_by_helpers(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos", count=13)
    spoil(photos)
    found = check(photos)
    assert len(found.facts) == 77 and list(found.bad.values()) == ["the file is empty"]


# what would be left out without a word


def test_whatever_a_training_leaves_out_is_counted_and_named_with_its_remedy(photos: Path) -> None:
    for place in ("lab/cat/2024/x.png", "lab/cat/2024/may/y.jpg", "lab/z.png", "top.JPG", ".thumbs/t.png"):
        (photos / place).parent.mkdir(parents=True, exist_ok=True)
        (photos / place).touch()
    for place in ("lab/cat/phone.HEIC", "lab/dog/camera.cr2", "street/cat/more.zip", "lab/cat/._x.png"):
        (photos / place).touch()
    (photos / "street" / "fox").mkdir()
    found = check(photos)
    assert found.warnings == [
        "ignored 2 images too deep: move up to DIR/<domain>/<class>/: lab/cat/2024/x.png, lab/cat/2024/may/y.jpg",
        "ignored 2 images too high: move down to DIR/<domain>/<class>/: top.JPG, lab/z.png",
        "ignored 2 pictures of a format that is not read: convert to JPEG or PNG: lab/cat/phone.HEIC, "
        "lab/dog/camera.cr2",
        "ignored 1 archive not unpacked: put the images at DIR/<domain>/<class>/: street/cat/more.zip",
        "ignored 1 image in hidden folders: rename the folders if the images are meant: .thumbs/t.png",
        "ignored 1 folder without images: fill or remove: street/fox",
    ]
    assert found.notes == ["ignored 1 item that cannot be an image: lab/cat/._x.png"]
    assert found.as_json()["ignored"]["too_deep"] == ["lab/cat/2024/x.png", "lab/cat/2024/may/y.jpg"]


def test_tiny_images_are_a_warning(photos: Path) -> None:
    Image.new("RGB", (1, 1)).save(photos / "lab" / "cat" / "pixel.png")
    found = check(photos)
    assert found.warnings == [
        "1 image of less than 8 x 8 pixels: replace or remove them: lab/cat/pixel.png"
    ] and found.as_json()["tiny"] == ["lab/cat/pixel.png"]


# nearly the same


def scene(seed: int) -> Image.Image:
    """A picture with coarse structure, as photographs have."""
    return picture(seed, 6, 8).resize((240, 180), Image.Resampling.BICUBIC)


COPIES: dict[str, Callable[[Path], None]] = {
    "re-encoded": lambda file: scene(1).save(file.with_suffix(".jpg"), quality=60),
    "resized": lambda file: scene(1).resize((120, 90)).save(file),
    "brightened": lambda file: ImageEnhance.Brightness(scene(1)).enhance(1.1).save(file),
    "all of it": lambda file: (
        ImageEnhance.Brightness(scene(1).resize((130, 99))).enhance(0.9).save(file.with_suffix(".jpg"), quality=70)
    ),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize(
    ("place", "meaning"),
    [
        ("street/cat", "in several domains: an unseen domain whose images are trained on is not unseen"),
        ("lab/cat", "several times in one domain: copies may be trained on and validated on"),
    ],
)
def test_nearly_equal_images_are_found_in_and_across_domains(photos: Path, copy: str, place: str, meaning: str) -> None:
    scene(1).save(photos / "lab" / "cat" / "a.png")
    for number in range(2, 20):
        scene(number).save(photos / "clinic" / "dog" / f"other{number}.png")
    COPIES[copy](photos / place / "b.png")
    found = check(photos)
    (line,) = found.warnings
    assert line.startswith(f"1 nearly equal pair {meaning}, e.g. lab/cat/a.png and {place}/b.")
    ((first, second),) = found.as_json()["near_duplicates"]
    assert first == "lab/cat/a.png" and second.startswith(f"{place}/b.")
    assert not found.problems and not found.duplicates


def test_digits_of_one_class_and_flat_images_are_no_copies_of_one_another() -> None:
    digits = embedded_digits().images[:1500].numpy()
    flat = [np.full((28, 28), 200 + level, np.uint8) for level in range(20)]
    thumbnails = [base64.b64encode(_thumbnail(Image.fromarray(image))).decode() for image in (*digits, *flat)]
    assert near_pairs(thumbnails) == []
    assert near_pairs([*thumbnails, thumbnails[7]]) == [(7, len(thumbnails))]


# the command


def test_the_command_says_ready_and_draws_a_preview(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(photos.rglob("*"))
    status, out, _ = tell(capsys, "photos")
    assert status == 0 and "ready to train" in out and "36 images of 2 classes in 3 domains" in out
    for domain in DOMAINS:
        assert domain in out
    assert "Preview: runs/check/photos.png" in out
    with Image.open(tmp_path / "runs/check/photos.png") as sheet:
        assert sheet.format == "PNG" and min(sheet.size) > 100
        assert len(np.unique(np.asarray(sheet.convert("RGB")).reshape(-1, 3), axis=0)) > 500, "it shows the images"
    assert sorted(photos.rglob("*")) == before, "nothing is written among the images"


def test_the_command_exits_with_2_and_names_what_is_wrong(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(photos)
    status, out, _ = tell(capsys, photos, "--preview", tmp_path / "p.png")
    assert status == 2
    assert "error: cannot decode lab/dog/002.png: the file is empty" in out
    assert "a training would stop: mend what is named, or train with --skip-bad" in out
    starve(photos)
    assert "--skip-bad" not in tell(capsys, photos, "--preview", tmp_path / "p.png")[1]


def test_json_has_everything(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(photos)
    copy(photos, "lab/cat/000.png", "street/cat/x.png")
    status, out, _ = tell(capsys, photos, "--json", "--preview", tmp_path / "new" / "p.png")
    told = json.loads(out)
    assert status == 2
    assert told["folder"] == str(photos) and told["domains"] == list(DOMAINS) and told["classes"] == list(CLASSES)
    assert told["images"] == 36 and told["counts"]["lab"] == {"cat": 6, "dog": 5}
    assert told["unreadable"] == {"lab/dog/002.png": "the file is empty"}
    assert told["duplicates"] == [["lab/cat/000.png", "street/cat/x.png"]]
    assert len(told["problems"]) == len(told["warnings"]) == 1
    assert told["preview"] == str(tmp_path / "new" / "p.png") and (tmp_path / "new" / "p.png").is_file()


def test_no_preview_is_written_into_the_folder_unasked(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(photos)
    before = sorted(photos.rglob("*"))
    status, _, err = tell(capsys, ".")
    assert status == 0 and "give --preview FILE" in err
    assert sorted(photos.rglob("*")) == before


@pytest.mark.parametrize("what", ["nowhere", "file", "empty"])
def test_what_is_no_folder_of_images_is_one_line_and_exit_2(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    status, out, err = tell(capsys, tmp_path / what)
    assert status == 2 and not out
    assert err.startswith("error: ") and "images belong at DIR/<domain>/<class>/<image>" in err and err.count("\n") == 1


def test_many_classes_and_odd_names_fit_the_screen_and_the_sheet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"class [{number}] of $many$" for number in range(12)]
    photos = make_folder(tmp_path / "odd [bold] $x$", domains=("a", "b"), classes=names, count=1)
    picture(500).save(photos / "a" / names[3] / "more.png")
    status, out, _ = tell(capsys, photos, "--preview", tmp_path / "p.png")
    assert status == 0 and "2 class [3] of $many$" in out
    with Image.open(tmp_path / "p.png") as sheet:
        assert sheet.width < 2500


def test_a_check_is_no_part_of_the_cache(photos: Path) -> None:
    assert isinstance(check(photos), Check)
    spoil(photos)
    assert check(photos).problems, "it looks at the files, whatever was decoded before"
