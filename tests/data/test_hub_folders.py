"""Folders in Hugging Face's layouts: images inside Parquet and Arrow files, and metadata beside images."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import domainwise as dw
from commands import Command
from domainwise.core.errors import UserError
from domainwise.data.find import find_dataset
from domainwise.data.images.decode import Packed
from domainwise.data.images.remote import container, shown, states
from domainwise.data.sources.check import check
from domainwise.data.sources.folder import scan
from domainwise.protocol.reading import Reading
from small_datasets import make_folder, picture
from small_tables import Row, rows_of, write

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra tables")
pytest.importorskip("pyarrow.parquet")
CLASSES = ["cat", "dog"]
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"_type": "ClassLabel", "names": CLASSES},
    "domain": {"dtype": "string", "_type": "Value"},
}
COLUMNS = {"domain": "domain"}


def table_of(photos: Path, **change: Any) -> Any:
    """The images of a folder as `datasets` stores them, with numbers of classes."""
    rows = [
        {
            "image": {"bytes": (photos / str(row["path"])).read_bytes(), "path": Path(str(row["path"])).name},
            "label": CLASSES.index(str(row["label"])),
            "domain": row["domain"],
            **change,
        }
        for row in rows_of(photos)
    ]
    table = pyarrow.Table.from_pylist(rows)
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def write_parquet(table: Any, file: Path, group: int = 10) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, file, row_group_size=group)
    return file


def write_arrow(table: Any, folder: Path, parts: int = 2) -> Path:
    """As `Dataset.save_to_disk` does: shards in the streaming format, and two descriptions."""
    folder.mkdir(parents=True)
    size = -(-len(table) // parts)
    names = [f"data-{number:05d}-of-{parts:05d}.arrow" for number in range(parts)]
    for number, name in enumerate(names):
        with pyarrow.ipc.new_stream(str(folder / name), table.schema) as file:
            file.write_table(table.slice(number * size, size))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


def same_images(data: dw.Environments, photos: Path) -> bool:
    folder = dw.load_dataset(photos, image_size=8)
    same = data.images.equal(folder.images) and data.labels.equal(folder.labels)
    return same and data.sizes == folder.sizes and data.classes == folder.classes


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"),
        ("train.parquet",),
    ],
)
def test_parquet_files_of_the_hub_are_read_as_their_images(
    photos: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    table, size = table_of(photos), -(-36 // len(names))
    for number, name in enumerate(names):
        write_parquet(table.slice(number * size, size), tmp_path / "hub" / name)
    assert same_images(dw.load_dataset(tmp_path / "hub", image_size=8), photos)


def test_a_split_of_another_name_is_refused(photos: Path, tmp_path: Path) -> None:
    write_parquet(table_of(photos), tmp_path / "hub/all/0.parquet")
    with pytest.raises(UserError, match="unknown split 'all': write train, val or test"):
        scan(tmp_path / "hub")


def test_arrow_files_of_save_to_disk_are_read(photos: Path, tmp_path: Path) -> None:
    make_folder(photos, count=12)  # so many that helper processes decode them
    assert same_images(dw.load_dataset(write_arrow(table_of(photos), tmp_path / "saved"), image_size=8), photos)


def test_splits_of_a_dictionary_are_kept(photos: Path, tmp_path: Path) -> None:
    table = table_of(photos)
    order = pyarrow.compute.sort_indices(table, [("label", "ascending")])
    for split, rows in (
        ("train", table.take(order[:27])),
        ("validation", table.take(order[27:32])),
        ("test", table.take(order[32:])),
    ):
        write_arrow(rows, tmp_path / "saved" / split)
    (tmp_path / "saved/dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "test"]}))
    data = find_dataset(str(tmp_path / "saved"))
    assert data.unseen and all(name.endswith("(test)") for name in data.unseen)
    environments = data.load(image_size=8)
    assert (
        environments.held_out is not None and int(environments.held_out.sum()) == 5 and len(environments.labels) == 36
    )


def test_splits_can_be_domains(photos: Path, tmp_path: Path) -> None:
    """Many datasets of domain generalisation are stored with one split per domain."""
    table = table_of(photos)
    for domain in ("clinic", "lab", "street"):
        rows = table.filter(pyarrow.compute.equal(table["domain"], domain)).drop_columns(["domain"])
        write_parquet(rows, tmp_path / f"hub/data/{domain}-00000-of-00001.parquet")
    data = dw.load_dataset(tmp_path / "hub", image_size=8, columns={"domain": "split"})
    assert same_images(data, photos)


def test_one_parquet_file_with_plain_bytes_and_other_columns(photos: Path, tmp_path: Path) -> None:
    rows = [
        {
            "picture": (photos / str(row["path"])).read_bytes(),
            "kind": row["label"],
            "site": row["domain"],
            "animal": n // 2,
        }
        for n, row in enumerate(rows_of(photos))
    ]
    file = write_parquet(pyarrow.Table.from_pylist(rows), tmp_path / "table.parquet", group=7)
    data = dw.load_dataset(file, image_size=8, columns={"label": "kind", "domain": "site", "group": "animal"})
    assert same_images(data, photos) and data.groups is not None and len(data.groups.unique()) == 18
    named = Reading.of({"path": "picture", "label": "kind", "domain": "site"})
    assert len(scan(file, named).images) == 36


def test_checks_name_a_bad_image_by_its_row(photos: Path, tmp_path: Path) -> None:
    rows = table_of(photos).to_pylist()
    rows[12]["image"]["bytes"] = b"no image"
    rows[20]["image"] = {"bytes": None, "path": "elsewhere.png"}
    rows[30]["image"]["bytes"] = rows[31]["image"]["bytes"]
    file = write_parquet(pyarrow.Table.from_pylist(rows), tmp_path / "hub/train.parquet")
    found = check(tmp_path / "hub")
    assert found.problems == [
        f"cannot decode image in row 3 of row group 2 of {file}: not an image of a known format",
        f"cannot decode image in row 1 of row group 3 of {file}: its bytes are not in the file but at elsewhere.png",
    ]
    assert len(found.duplicates) == 1 and "image in row 1 of row group 4" in found._path(found.duplicates[0][0])
    with pytest.raises(UserError, match=r"cannot decode image in row 3 of row group 2 of .*\(and 1 more\)"):
        find_dataset(str(tmp_path / "hub")).load(image_size=8)
    assert len(find_dataset(str(tmp_path / "hub"), skip_bad=True).load(image_size=8).labels) == 34


def test_bursts_read_the_times_of_packed_images(tmp_path: Path) -> None:
    rows = []
    for number in range(10):
        exif, file = Image.Exif(), io.BytesIO()
        exif.get_ifd(0x8769)[0x9003] = f"2026:05:01 12:{number // 2:02d}:{20 * (number % 2):02d}"
        picture(number).save(file, "JPEG", exif=exif)
        image = {"bytes": file.getvalue(), "path": None}
        rows.append({"image": image, "label": CLASSES[number % 2], "domain": "a"})
    file = write_parquet(pyarrow.Table.from_pylist(rows), tmp_path / "table.parquet")
    data = dw.load_dataset(file, image_size=8, bursts="time:30s")
    assert data.groups is not None and len(data.groups.unique()) == 5


def test_a_changed_file_is_other_data(photos: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    write_parquet(table_of(photos), hub / "train.parquet")
    before = find_dataset(str(hub)).name
    assert find_dataset(str(hub)).name == before and find_dataset(before).load(image_size=8)
    write_parquet(table_of(photos).slice(1), hub / "train.parquet")
    assert find_dataset(str(hub)).name != before
    with pytest.raises(UserError, match="have changed since this run was planned"):
        find_dataset(before).load(image_size=9)


def test_addresses_survive_odd_names(tmp_path: Path) -> None:
    address = str(Packed(str(tmp_path / "a#b c.parquet"), 3, 7, "im/age1"))
    assert container(address) == tmp_path / "a#b c.parquet" and container(tmp_path / "x.png") is None
    assert shown(address).startswith("im/age1 in row 8 of row group 4 of ") and states([address]) == {}


@pytest.mark.parametrize("split", ["", "train"])
def test_metadata_of_an_image_folder(photos: Path, tmp_path: Path, split: str) -> None:
    rows: list[Row] = [{"file_name": row.pop("path"), **row} for row in rows_of(photos)]
    if split:
        for name, part in (("train", rows[:30]), ("test", rows[30:])):
            for row in part:
                target = tmp_path / "folder" / name / str(row["file_name"])
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((photos / str(row["file_name"])).read_bytes())
            write(tmp_path / "folder" / name / "metadata.jsonl", part)
        data = find_dataset(str(tmp_path / "folder"))
        assert data.unseen == ("street (test)",) and len(data.load(image_size=8).labels) == 36
    else:
        write(photos / "metadata.csv", rows)
        assert find_dataset(str(photos)).name.startswith(f"{photos.resolve()}/metadata.csv#")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda hub: (hub / "state.json").write_text("{}"), "lists no files"),
        (lambda hub: (hub / "state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}'), "no table"),
        (lambda hub: (hub / "data-00000-of-00002.arrow").write_bytes(b"x" * 99), "is no whole Arrow file"),
        (lambda hub: (hub / "dataset_dict.json").write_text('{"splits": 3}'), "names no splits"),
    ],
)
def test_damaged_folders_are_one_line(photos: Path, tmp_path: Path, harm: Any, message: str) -> None:
    hub = write_arrow(table_of(photos), tmp_path / "saved")
    harm(hub)
    with pytest.raises(UserError, match=message) as error:
        scan(hub)
    assert "\n" not in str(error.value)


def test_a_stray_parquet_file_does_not_hide_images(photos: Path) -> None:
    write_parquet(table_of(photos), photos / "stray.parquet")
    assert len(scan(photos).images) == 36 and all(isinstance(image.file, Path) for image in scan(photos).images)


def test_commands_read_them(photos: Path, tmp_path: Path, domainwise: Command) -> None:
    hub = write_arrow(table_of(photos), tmp_path / "saved")
    few = ("--hparam", "batch_size=2", "--steps", 2, "--device", "cpu", "--network", "small-cnn", "--image-size", 16)
    assert domainwise("data", "check", hub).status == 0
    trained = domainwise("train", "--data", hub, "--test-domain", "street", *few, "--out", "model")
    assert trained.status == 0, trained.err
    assert domainwise("evaluate", "model", "--data", hub, "--device", "cpu").status == 0
    predicted = domainwise("predict", "model", hub, "--device", "cpu")
    assert predicted.status == 0 and len(predicted.out.splitlines()) == 36 and "image in row 1 of" in predicted.out
    table = write(tmp_path / "table.csv", [{"file": row["path"]} for row in rows_of(photos)])
    listed = domainwise("predict", "model", table, "--columns", "path=file", "--root", photos, "--device", "cpu")
    assert listed.status == 0 and len(listed.out.splitlines()) == 36, listed.err
    assert domainwise("predict", "model", table, "--device", "cpu").is_one_line_error
