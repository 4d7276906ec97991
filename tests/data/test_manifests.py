"""Tables of image files as datasets."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import domainwise as dw
from domainwise.core.errors import UserError
from domainwise.data.find import find_dataset
from domainwise.data.sources.check import check
from domainwise.data.sources.manifest import paths_of, table_of_folder
from domainwise.protocol.reading import PLAIN, Reading
from small_datasets import make_folder, picture
from small_tables import Row, rows_of, write


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "photos")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_table_reads_what_its_folder_does(photos: Path, suffix: str) -> None:
    table = write(photos / f"table{suffix}", rows_of(photos))
    ours, folder = dw.load_dataset(table, image_size=8), dw.load_dataset(photos, image_size=8)
    assert ours.sizes == folder.sizes and ours.classes == folder.classes
    assert ours.images.equal(folder.images) and ours.labels.equal(folder.labels)


def test_a_folder_of_images_becomes_a_table(photos: Path, tmp_path: Path) -> None:
    assert table_of_folder(photos, tmp_path / "table.csv") == 36
    assert dw.load_dataset(tmp_path / "table.csv", image_size=8).images.equal(
        dw.load_dataset(photos, image_size=8).images
    )


def test_paths_of_a_table_are_absolute_where_the_images_are_not_below_it(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for out, absolute in ((tmp_path / "table.csv", False), (tmp_path / "elsewhere" / "table.csv", True)):
        table_of_folder(photos, out)
        places = [line.split(",")[0] for line in out.read_text().splitlines()[1:]]
        assert {Path(place).is_absolute() for place in places} == {absolute}
        assert dw.load_dataset(out, image_size=8).images.equal(dw.load_dataset(photos, image_size=8).images)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("clinic/=1+1", "a spreadsheet takes the label '=1+1' for a formula"),
        ("+x/cat", "a spreadsheet takes the path '+x/cat/a.png' for a formula"),
        ("clinic/a\tb", "path holds characters that cannot be printed"),
        ("clinic/cat ", "the label 'cat ' begins or ends with white space"),
    ],
)
def test_a_name_that_a_table_cannot_hold_is_refused(photos: Path, place: str, reason: str) -> None:
    (photos / place).mkdir(parents=True)
    shutil.copy(photos / "lab/cat/000.png", photos / place / "a.png")
    with pytest.raises(UserError, match=re.escape(reason)):
        table_of_folder(photos, photos / "table.csv")
    assert not (photos / "table.csv").exists()


@pytest.mark.parametrize("label", ["-1", "x=1", "'=1", "a, b", 'the "cat"'])
def test_other_names_are_read_again_as_they_are(photos: Path, label: str) -> None:
    (photos / "lab/cat").rename(photos / "lab" / label)
    assert table_of_folder(photos, photos / "table.csv") == 36
    assert label in find_dataset(str(photos / "table.csv")).classes


def test_other_columns_and_root_are_part_of_the_name_from_which_alone_the_data_is_found_again(
    photos: Path, tmp_path: Path
) -> None:
    rows: list[Row] = [{"camera & lens": row.pop("domain"), **row} for row in rows_of(photos)]
    table = write(tmp_path / "elsewhere.csv", rows)
    with pytest.raises(UserError, match="no column 'domain' for the domain"):
        find_dataset(str(table))
    reading = Reading.of({"domain": "camera & lens"}, photos)
    data = find_dataset(str(table), reading=reading)
    again = find_dataset(data.name)
    assert again.name == data.name and again.title == "elsewhere.csv"
    assert again.load(image_size=8).images.equal(dw.load_dataset(photos, image_size=8).images)
    assert Reading.parse(str(reading)) == reading and not str(PLAIN)
    (photos / "lab/cat/000.png").write_bytes((photos / "lab/cat/001.png").read_bytes())
    assert find_dataset(str(table), reading=reading).name != data.name


def test_given_splits_hold_out_rows_and_make_unseen_domains(photos: Path) -> None:
    rows = rows_of(photos)
    for number, row in enumerate(rows):
        row["split"] = ("Training", "valid", "test")[number % 3]
    data = find_dataset(str(write(photos / "table.csv", rows)))
    assert data.domains == ("clinic", "lab", "street", "clinic (test)", "lab (test)", "street (test)")
    assert data.unseen == data.domains[3:]
    environments = data.load(image_size=8)
    assert environments.held_out is not None
    for trial in (0, 1):
        out = environments.split("lab", trial)["out"]
        assert (
            sorted(out.tolist()) == environments.rows("lab")[environments.held_out[environments.rows("lab")]].tolist()
        )


def test_groups_and_bursts_are_never_divided(photos: Path) -> None:
    rows = rows_of(photos)
    for number, row in enumerate(rows):
        row |= {"when": 1000 * (number // 3) + 10 * (number % 3), "group": "linked" if number in (0, 3) else ""}
    table = write(photos / "table.csv", rows)
    data = dw.load_dataset(table, image_size=8, columns={"time": "when"}, bursts="time:30s")
    assert data.groups is not None
    groups = data.groups.tolist()
    assert len(set(groups)) == 11 and len(set(groups[:6])) == 1  # two bursts of the twelve share a group
    assert (
        dw.load_dataset(table, image_size=8, columns={"time": "when"}, bursts="time:5s").groups.unique().numel() == 35
    )  # type: ignore[union-attr]
    for domain in data.domains:
        parts = data.split(domain, 0)
        assert not {groups[i] for i in parts["in"].tolist()} & {groups[i] for i in parts["out"].tolist()}


def test_times_of_bursts_come_from_exif(tmp_path: Path) -> None:
    rows: list[Row] = []
    for number in range(10):
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9003] = f"2026:05:01 12:{number // 2:02d}:{20 * (number % 2):02d}"
        picture(number).save(tmp_path / f"{number}.jpg", exif=exif)
        rows.append({"path": f"{number}.jpg", "label": "cat" if number % 2 else "dog", "domain": "a"})
    data = dw.load_dataset(write(tmp_path / "table.csv", rows), image_size=8, bursts="time:30s")
    assert data.groups is not None and data.groups.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]


def test_images_at_urls_are_read(photos: Path) -> None:
    rows = rows_of(photos)
    table = write(photos / "table.csv", [{**row, "path": f"file://{photos / str(row['path'])}"} for row in rows])
    assert dw.load_dataset(table, image_size=8).images.equal(dw.load_dataset(photos, image_size=8).images)
    write(photos / "table.csv", [{**row, "path": f"nosuch://{row['path']}"} for row in rows])
    with pytest.raises(UserError, match="cannot read nosuch://"):
        find_dataset(str(table))


def test_huggingface_metadata_is_read_as_a_table(photos: Path) -> None:
    write(photos / "metadata.csv", [{"file_name": row.pop("path"), **row} for row in rows_of(photos)])
    data = find_dataset(str(photos))
    assert data.title == "photos" == data.load(image_size=8).name
    assert data.name.startswith(f"{photos.resolve()}/metadata.csv#") and len(data.load(image_size=8).labels) == 36


def test_a_window_maps_its_ends_to_black_and_white(tmp_path: Path) -> None:
    values = np.array([[0, 1000], [2000, 3000]], np.uint16)
    rows: list[Row] = []
    for number in range(10):
        Image.fromarray(values).resize((16, 16), Image.Resampling.NEAREST).save(tmp_path / f"{number}.png")
        rows.append({"path": f"{number}.png", "label": "cat" if number % 2 else "dog", "domain": "a"})
    table = write(tmp_path / "table.csv", rows)
    image = dw.load_dataset(table, image_size=16, window="1000:2000").images[0, 0]
    assert [int(image[i, j]) for i, j in ((2, 2), (2, 13), (13, 2), (13, 13))] == [0, 0, 255, 255]
    dark = dw.load_dataset(table, image_size=16).images[0, 0]
    assert int(dark[13, 13]) == 3000 >> 8
    with pytest.raises(UserError, match="write LOW:HIGH"):
        dw.load_dataset(table, window="5:5")


def test_missing_files_are_named_or_left_out(photos: Path) -> None:
    table = write(photos / "table.csv", rows_of(photos))
    (photos / "lab/cat/000.png").unlink()
    with pytest.raises(UserError, match=r"lab/cat/000\.png, which is no file") as error:
        find_dataset(str(table))
    assert error.value.argument == "skip_bad"
    assert len(find_dataset(str(table), skip_bad=True).load(image_size=8).labels) == 35
    assert len(paths_of(table, PLAIN)) == 36


GOOD = "path,label,domain\nlab/cat/000.png,cat,lab\n"


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b""])
def test_byte_order_marks_quotes_and_blank_lines_are_read(photos: Path, start: bytes) -> None:
    more = b'\r\n\r\n"lab/cat/001.png","a ""dog"", big",lab\r\n'
    (photos / "t.csv").write_bytes(start + GOOD.strip().encode() + more)
    assert find_dataset(str(photos / "t.csv")).classes == ('a "dog", big', "cat")


def test_optional_columns_are_told_and_may_be_left_unread(photos: Path) -> None:
    rows = rows_of(photos)
    for number, row in enumerate(rows):
        row |= {"time": "06:30", "weight": 70 + number, "animal": number // 3}
    table = write(photos / "table.csv", rows)
    found = check(table, Reading.of({"group": "animal"}))
    also, groups = found.notes
    assert also.startswith("also read: column animal as group (images that stay together), column weight as weight (")
    assert groups == "12 groups of 36 images; the largest has 3" and found.as_json()["groups"] == 12
    assert dw.load_dataset(table, image_size=8).weights is not None, "no time is read without bursts"
    unread = Reading.of({"weight": ""})
    assert check(table, unread).notes == [] and Reading.parse(str(unread)) == unread
    assert dw.load_dataset(table, image_size=8, columns={"weight": ""}).weights is None
    with pytest.raises(UserError, match="time '06:30' cannot be read"):
        dw.load_dataset(table, image_size=8, bursts="time:30s")
    with pytest.raises(UserError, match="the domain needs a column"):
        Reading.of({"domain": ""})


def test_an_empty_time_is_not_known(photos: Path) -> None:
    rows = rows_of(photos)
    for number, row in enumerate(rows):
        row["time"] = "" if number == 0 else 1000 * (number // 2)
    table = write(photos / "table.csv", rows)
    data = dw.load_dataset(table, image_size=8, bursts="time:30s")
    assert data.groups is not None and data.groups[:4].tolist() == [0, 1, 2, 2]
