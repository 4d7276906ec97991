"""The image datasets, on small folders in their published layouts, and on the real PACS where it is."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS
from domainwise.data.environments import Environments
from domainwise.data.sources import domain_net, nico, terra
from domainwise.data.sources.image_files import in_class_folders
from domainwise.nets import NETWORKS
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import RULES
from domainwise.sweeps.plan import plan_sweep
from small_datasets import REAL, plain_picture, shade, write_terra

IMAGE_DATASETS = ("PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet", "SVIRO", "NICO", "MixedSame")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))


def class_folders(root: Path, folders: Iterable[str], classes: Iterable[str], suffix: str = ".jpg") -> None:
    """Two pictures of each class in each domain; the shade tells which."""
    for d, folder in enumerate(folders):
        for c, name in enumerate(classes):
            for number in range(2):
                plain_picture(root / folder / name / f"pic_{number}{suffix}", shade(d, c))


def write_nico(root: Path, lists: str = "NICO/mixed_split_corrected") -> None:
    for d, (_, file) in enumerate(nico.LISTS.items()):
        rows = []
        for label, (superclass, category) in enumerate((("animal", "bear"), ("vehicle", "bus"))):
            for number in range(4):
                name = f"{d}{number}.jpg"
                plain_picture(root / "NICO" / superclass / "images" / category / "on snow" / name, shade(d, label))
                rows.append(f"{category}\\on snow\\{name},{category},on snow,{superclass}")
        (root / lists).mkdir(parents=True, exist_ok=True)
        (root / lists / file).write_text("\r\n".join(rows) + "\r\n")


def write(name: str, root: Path) -> None:
    data = DATASETS[name]
    if name == "NICO":
        write_nico(root)
    elif name == "MixedSame":
        folders = [f"bg_challenge/{kind}/val" for kind in ("mixed_same", "mixed_rand")]
        class_folders(root, folders, [f"{i:02}_{c}" for i, c in enumerate(data.classes)], ".JPEG")
    elif name == "TerraIncognita":
        class_folders(root / "terra_incognita", [f"location_{place}" for place in terra.LOCATIONS], data.classes)
    elif name == "SVIRO":
        class_folders(root / "sviro", data.domains, [str(number) for number in range(7)], ".png")
    else:
        home = {"PACS": "PACS/kfold", "VLCS": "VLCS", "OfficeHome": "office_home"}[name]
        class_folders(root / home, data.domains, data.classes)


def check_shades(data: Environments) -> None:
    """Every picture stands in its domain, with its label."""
    for d, domain in enumerate(data.domains):
        rows = data.rows(domain)
        expected = torch.tensor([shade(d, label) for label in data.labels[rows].tolist()])
        red = data.images[rows][:, 0, 8, 8].int()
        assert (red - expected).abs().max() <= 1, domain


@pytest.mark.parametrize("name", [name for name in IMAGE_DATASETS if name != "DomainNet"])
def test_a_published_layout_is_read(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(name, tmp_path)
    known = DATASETS[name]
    data = known.load(tmp_path, 16)
    assert data.domains == known.domains and data.classes == known.classes and data.shape == (3, 16, 16)
    for domain in data.domains:
        counts = Counter(data.labels[data.rows(domain)].tolist())
        assert set(counts) == set(range(len(known.classes))), domain
    check_shades(data)
    assert data.low[0] == pytest.approx(-0.485 / 0.229) and data.high[2] == pytest.approx((1 - 0.406) / 0.225)
    assert re.search(rf"{name} in .* has \d+ images \(published: [\d,]+\)", caplog.text), "a note, not an error"


@pytest.mark.parametrize(
    ("name", "domains", "classes", "images"),
    [
        ("PACS", 4, 7, 9_991),
        ("VLCS", 4, 5, 10_729),
        ("OfficeHome", 4, 65, 15_588),
        ("TerraIncognita", 4, 10, 24_788),
        ("DomainNet", 6, 345, 586_575),
        ("SVIRO", 10, 7, 56_000),
        ("NICO", 4, 2, 4_080),
        ("MixedSame", 2, 9, 8_370),
    ],
)
def test_the_facts_of_the_protocol(name: str, domains: int, classes: int, images: int) -> None:
    data = DATASETS[name]
    assert (len(data.domains), len(data.classes), data.source and data.source.images) == (domains, classes, images)
    assert data.steps == 5001 and data.scale == "image" and data.shape == (3, 224, 224) and data.resizable
    assert data.network in NETWORKS and data.selection in RULES
    assert data.evaluate_every == {"NICO": 200, "DomainNet": 1000}.get(name, 300)
    if name == "NICO":
        assert (data.held_out, data.selection, data.network) == (0.0, "validation-domain", "resnet18-scratch")
        assert data.augmentation == "oodbench"
    else:
        assert (data.held_out, data.selection, data.augmentation) == (0.2, "training-domain", "domainbed")
    if name not in ("MixedSame", "SVIRO"):
        assert list(data.classes) == sorted(data.classes), "labels are in the order of the sorted folders"


def test_nico_trains_on_two_environments_and_chooses_by_a_third() -> None:
    (run,) = plan_sweep("NICO", ("ERM",), draws=1, trials=1).runs()
    assert run.train_domains == ("train1", "train2") and run.validation_domains == ("validation",)
    assert run.test_domains == ("test",) and run.held_out == 0
    alone = plan_sweep("NICO", ("ERM",), draws=1, trials=1, setting="single").runs()
    assert [(run.train_domains, run.test_domains) for run in alone] == [
        (("train1",), ("test",)),
        (("train2",), ("test",)),
    ]


def test_mixed_same_is_never_tested_on() -> None:
    runs = [plan_sweep("MixedSame", ("DAT",), draws=1, trials=1, setting=s).runs() for s in ("multi", "single")]
    for (run,) in runs:
        assert (run.train_domains, run.test_domains) == (("Mixed-Same",), ("Mixed-Rand",))
    assert isinstance(runs[0][0], Run)


@pytest.mark.parametrize("place", ["PACS", "PACS/kfold", "pacs", "kfold"])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".JPEG"])
def test_pacs_in_the_usual_places_and_kinds_of_image(tmp_path: Path, place: str, suffix: str) -> None:
    known = DATASETS["PACS"]
    class_folders(tmp_path / place, known.domains, known.classes, suffix)
    (tmp_path / place / "photo" / "dog" / "notes.txt").write_text("stray")
    (tmp_path / place / "photo" / "dog" / "._pic_0.jpg").write_text("of a Macintosh")
    data = known.load(tmp_path, 16)
    assert dict(data.sizes) == dict.fromkeys(known.domains, 14)


@pytest.mark.parametrize("folder", ["Real World", "RealWorld", "Real_World"])
def test_office_home_knows_its_fourth_domain_by_every_name(tmp_path: Path, folder: str) -> None:
    known = DATASETS["OfficeHome"]
    class_folders(tmp_path / "OfficeHomeDataset_10072016", ["Art", "Clipart", "Product", folder], known.classes[:3])
    assert known.load(tmp_path, 8).domains == ("Art", "Clipart", "Product", "Real World")


def test_domain_net_leaves_out_the_images_that_domainbed_leaves_out(tmp_path: Path) -> None:
    known = DATASETS["DomainNet"]
    class_folders(tmp_path / "domain_net", known.domains, known.classes[:2])
    twice = f"real/{known.classes[0]}/pic_0.jpg"
    (tmp_path / "domain_net" / domain_net.DUPLICATES).write_text(f"{twice}\nreal/gone.jpg\n")
    data = known.load(tmp_path, 16)
    assert dict(data.sizes) == dict.fromkeys(known.domains, 4) | {"real": 3}
    check_shades(data)


@pytest.mark.parametrize("name", IMAGE_DATASETS)
def test_missing_data_says_where_what_and_how(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        DATASETS[name].load(tmp_path)
    message = str(caught.value)
    part = DATASETS[name].source.parts[0]
    for words in (str(tmp_path / part.places[0]), part.needs[0][0], part.layout, "name another data root"):
        assert words in message
    assert ("in a browser from https://" in message) != (f"domainwise data get {name}" in message) or part.archives
    assert "\n" not in message


def test_a_missing_domain_alone_is_named(tmp_path: Path) -> None:
    write("VLCS", tmp_path)
    (tmp_path / "VLCS" / "SUN09").rename(tmp_path / "SUN09")
    with pytest.raises(UserError, match=re.escape(f"VLCS not found: looked in {tmp_path / 'VLCS'} for SUN09 (")):
        DATASETS["VLCS"].load(tmp_path)


def test_a_class_without_a_folder_is_a_note_and_a_domain_without_images_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write("VLCS", tmp_path)
    for name in DATASETS["VLCS"].classes[1:]:
        (tmp_path / "VLCS" / "SUN09" / name).rename(tmp_path / name)
    (tmp_path / "VLCS" / "SUN09" / "bird" / "pic_2.jpg").write_bytes((tmp_path / "dog" / "pic_0.jpg").read_bytes())
    with pytest.raises(UserError, match="SUN09: 3 images"):
        DATASETS["VLCS"].load(tmp_path, 8).split("SUN09", 0)
    assert "has no folder 'person'" in caplog.text
    (tmp_path / "VLCS" / "SUN09" / "bird").rename(tmp_path / "bird")
    with pytest.raises(UserError, match=r"SUN09 holds no images: expected .*<class>.* bird, car, chair, dog, person"):
        DATASETS["VLCS"].load(tmp_path, 9)  # another size, since the last data loaded is kept


def test_a_corrupt_image_is_named(tmp_path: Path) -> None:
    write("PACS", tmp_path)
    bad = tmp_path / "PACS" / "kfold" / "photo" / "horse" / "pic_1.jpg"
    bad.write_bytes(bad.read_bytes()[:100])
    with pytest.raises(UserError, match=re.escape(f"PACS: cannot decode {bad}: ")) as caught:
        DATASETS["PACS"].load(tmp_path, 8)
    assert "\n" not in str(caught.value)


# NICO


def break_nico(root: Path, change: Callable[[str], str]) -> Path:
    write_nico(root)
    file = root / "NICO" / "mixed_split_corrected" / "env_test.csv"
    file.write_text(change(file.read_text()))
    return file


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("bear\\", "wolf\\"), r"4 of the 8 images that .*env_test.csv lists are missing"),
        (lambda text: text.replace(",animal", ",plant"), "not a split list"),
        (lambda text: text.replace(",animal", ""), "not a split list"),
        (lambda text: text.replace("bear\\", "..\\..\\bear\\"), "leads elsewhere"),
        (lambda text: text.replace("bear\\", "C:\\"), "leads elsewhere"),
    ],
)
def test_damaged_lists_are_one_line(tmp_path: Path, change: Callable[[str], str], words: str) -> None:
    file = break_nico(tmp_path, change)
    with pytest.raises(UserError, match=words) as caught:
        DATASETS["NICO"].load(tmp_path, 8)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_nico_lists_beside_the_images_and_lists_missing(tmp_path: Path) -> None:
    write_nico(tmp_path, lists="nico_splits")
    assert len(DATASETS["NICO"].load(tmp_path, 8).labels) == 32
    (tmp_path / "nico_splits" / "env_val.csv").unlink()
    with pytest.raises(UserError, match=r"mixed split not found: looked in .*nico_splits for env_val.csv"):
        DATASETS["NICO"].load(tmp_path, 9)


@pytest.mark.skipif(not (REAL / "nico_splits").is_dir(), reason="the NICO lists are not in $DOMAINWISE_DATA")
def test_the_real_nico_lists_have_the_published_sizes_and_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", lambda _: True)  # the images are not there
    folders = [Path("NICO") / folder for folder in nico.SUPERCLASS_FOLDERS]
    listed = {d: nico.read_list(REAL / "nico_splits" / file, folders) for d, file in nico.LISTS.items()}
    assert {d: len(rows) for d, rows in listed.items()} == {
        "train1": 1640,
        "train2": 1640,
        "validation": 400,
        "test": 400,
    }
    snowy = Counter(label for file, label in listed["test"] if "snow" in file.parent.name)
    assert snowy == {0: 90, 1: 10}, "animals on snow are rare in training and common in the test"
    assert len({file for rows in listed.values() for file, _ in rows}) == 4080, "no image is in two environments"


# TerraIncognita


@pytest.mark.parametrize("annotations", [f"{terra.ANNOTATIONS}/train.json", "caltech_images_20210113.json"])
def test_annotations_become_folders_of_four_locations_and_ten_classes(tmp_path: Path, annotations: str) -> None:
    write_terra(tmp_path, annotations)
    terra.convert(tmp_path)
    converted = tmp_path / "terra_incognita" / "converted"
    assert sorted(path.name for path in converted.iterdir()) == [
        "location_100",
        "location_38",
        "location_43",
        "location_46",
    ]
    files = sorted(str(path.relative_to(converted)) for path in converted.rglob("*.jpg"))
    assert len(files) == 4 * 10 + 1 and "location_100/dog/100-0.jpg" in files, "seen with two animals, filed under both"
    assert not any("car" in file for file in files)
    terra.convert(tmp_path)  # again: nothing to do
    for place in ("100", "38", "43", "46"):
        listed = in_class_folders(converted / f"location_{place}", terra.CLASSES)
        assert [label for file, label in listed if file.stem != "100-0"] == [
            n for n in range(10) if place != "100" or n
        ]
    assert DATASETS["TerraIncognita"].load(tmp_path, 8).domains == ("L100", "L38", "L43", "L46")


def test_annotated_images_that_are_absent_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_terra(tmp_path)
    (tmp_path / terra.FOLDER / terra.IMAGES / "38-3.jpg").unlink()
    terra.convert(tmp_path)
    assert "1 of 41 annotated images are not in" in caplog.text


@pytest.mark.parametrize("text", ["", "[]", '{"images": [], "annotations": []}', '{"categories": 3}'])
def test_damaged_annotations_are_one_line_and_leave_nothing(tmp_path: Path, text: str) -> None:
    write_terra(tmp_path)
    file = tmp_path / terra.FOLDER / terra.ANNOTATIONS / "train.json"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(str(file))) as caught:
        terra.convert(tmp_path)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in file.parent.parent.iterdir()) == [terra.IMAGES, terra.ANNOTATIONS]


# PACS


@pytest.mark.skipif(not (REAL / "PACS").is_dir(), reason="PACS is not in $DOMAINWISE_DATA")
def test_the_real_pacs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = DATASETS["PACS"]
    folders = known.source.parts[0].find(REAL, "PACS")
    listed = {d: in_class_folders(folder, known.classes) for d, folder in zip(known.domains, folders, strict=True)}
    sizes = {d: len(pictures) for d, pictures in listed.items()}
    assert sizes == {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    for domain, pictures in listed.items():  # every 40th is decoded
        for file, label in pictures[::40]:
            link = tmp_path / "PACS" / domain / known.classes[label] / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
    data = known.load(tmp_path, 64)
    row = data.rows("photo")[3]
    file, label = in_class_folders(tmp_path / "PACS" / "photo", known.classes)[3]
    reference = np.asarray(Image.open(file).convert("RGB").resize((64, 64), Image.Resampling.BILINEAR)).transpose(
        2, 0, 1
    )
    assert data.labels[row] == label and np.abs(data.images[row].numpy().astype(int) - reference).mean() < 12
    grey = (data.images[data.rows("sketch")].float().std(1) < 5).float().mean()
    assert grey > 0.95, "sketches have no colour"
