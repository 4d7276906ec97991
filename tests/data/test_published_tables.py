"""Datasets listed by tables, and Spawrious: on small folders in their published layouts."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS
from domainwise.data.environments import Environments
from domainwise.data.sources import spawrious, wilds
from domainwise.data.sources.saved import load_environments, save_environments
from domainwise.engine.evaluation import splits_to_evaluate
from domainwise.sweeps.plan import plan_sweep
from small_datasets import plain_picture, shade


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))


def write_camelyon(root: Path) -> Path:
    """Six patches of a patient of each hospital: two of them are held out in the published split."""
    rows = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    base = root / "camelyon17_v1.0"
    for center in range(5):
        for number in range(6):
            tumor = number % 2
            place = f"patient_0{center}4_node_{center}"
            file = base / "patches" / place / f"patch_{place}_x_{32 * number}_y_64.png"
            plain_picture(file, shade(center, tumor))
            split = "1" if number < 2 else "0"
            rows.append(f"{len(rows)},0{center}4,{center},{32 * number},64,{tumor},{center},{center},{split}")
    (base / "metadata.csv").write_text("\n".join(rows) + "\n")
    return base / "metadata.csv"


def write_fmow(root: Path) -> Path:
    base = root / "fmow_v1.1"
    (base / "images").mkdir(parents=True)
    codes = {"Africa": "KEN", "Americas": "BRA", "Asia": "IND", "Europe": "FRA", "Oceania": "FJI"}
    mapping = ["name,alpha-3,region,sub-region", *(f"x,{code},{region},y" for region, code in codes.items())]
    (base / "country_code_mapping.csv").write_text("\n".join([*mapping, "x,ATA,,", ""]))
    rows = ["split,img_filename,category,country_code,timestamp,visible"]
    for split, year in (("train", 2010), ("val", 2011), ("val", 2014), ("test", 2016), ("seq", 2010), ("test", 2012)):
        for r, code in enumerate([*codes.values(), "ATA"]):
            for category in ("airport", "zoo"):
                for copy in range(3):
                    number = len(rows) - 1
                    plain_picture(base / "images" / f"rgb_img_{number}.png", shade(r, int(category == "zoo")))
                    rows.append(f"{split},a_{copy}.jpg,{category},{code},{year}-05-01T10:00:00Z,1")
    (base / "rgb_metadata.csv").write_text("\n".join(rows) + "\n")
    return base / "rgb_metadata.csv"


def write_waterbirds(root: Path) -> Path:
    base = root / "waterbirds_v1.0"
    rows = ["img_id,img_filename,y,split,place,place_filename"]
    for split in range(3):
        for place in range(2):
            for y in range(2):
                for copy in range(2):
                    file = f"001.Bird/{split}{place}{y}{copy}.jpg"
                    plain_picture(base / file, shade(2 * split + place, y))
                    rows.append(f"{len(rows)},{file},{y},{split},{place},/f/forest/1.jpg")
    (base / "metadata.csv").write_text("\n".join(rows) + "\n")
    return base / "metadata.csv"


def write_celeba(root: Path, images: str = "img_align_celeba") -> Path:
    base = root / "celebA_v1.0"
    attributes, partition = ["image_id,5_o_Clock_Shadow,Blond_Hair,Male"], ["image_id,partition"]
    for split in range(3):
        for male in range(2):
            for blond in range(2):
                for _ in range(2):
                    file = f"{len(partition):06}.jpg"
                    plain_picture(base / images / file, shade(2 * split + male, blond))
                    attributes.append(f"{file},-1,{2 * blond - 1},{2 * male - 1}")
                    partition.append(f"{file},{split}")
    (base / "list_attr_celeba.csv").write_text("\n".join(attributes) + "\n")
    (base / "list_eval_partition.csv").write_text("\n".join(partition) + "\n")
    return base / "list_attr_celeba.csv"


WRITERS: dict[str, Callable[[Path], Path]] = {
    "Camelyon17": write_camelyon,
    "Camelyon17-official": write_camelyon,
    "FMoW": write_fmow,
    "FMoW-official": write_fmow,
    "Waterbirds": write_waterbirds,
    "CelebA": write_celeba,
}


def check_shades(data: Environments, shades_of: Callable[[int, int], int]) -> None:
    """Every picture stands in its domain, with its label."""
    for d, domain in enumerate(data.domains):
        rows = data.rows(domain)
        expected = torch.tensor([shades_of(d, label) for label in data.labels[rows].tolist()])
        assert (data.images[rows][:, 0, 8, 8].int() - expected).abs().max() <= 1, domain


@pytest.mark.parametrize("name", WRITERS)
def test_a_published_table_is_read(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path)
    known = DATASETS[name]
    data = known.load(tmp_path, 16)
    assert data.domains == known.domains and data.classes == known.classes and data.shape == (3, 16, 16)
    regions, last = len(wilds.REGIONS), len(known.classes) - 1
    place = (lambda d: d % regions) if name == "FMoW-official" else (lambda d: d)
    check_shades(data, lambda d, label: shade(place(d), int(label == last)))
    for domain in data.domains:
        assert set(data.labels[data.rows(domain)].tolist()) == {0, last}
    assert known.missing(tmp_path) == ""


def test_wilds_split_is_kept_and_its_validation_and_test_are_whole(tmp_path: Path) -> None:
    write_camelyon(tmp_path)
    data = DATASETS["Camelyon17-official"].load(tmp_path, 8)
    (run,) = plan_sweep("Camelyon17-official", ("ERM",), draws=1, trials=1).runs()
    assert run.train_domains == ("hospital_0", "hospital_3", "hospital_4")
    assert (run.validation_domains, run.test_domains) == (("hospital_1",), ("hospital_2",))
    sizes = {split: len(rows) for split, rows in splits_to_evaluate(run, data).items()}
    trained_on = {(hospital, "out"): 2 for hospital in run.train_domains}
    assert sizes == trained_on | {("hospital_1", "in"): 6, ("hospital_2", "in"): 6}
    held_out = data.split("hospital_3", 0)["out"]
    assert sorted((held_out - data.rows("hospital_3")[0]).tolist()) == [0, 1], "those that the table holds out"
    again = load_environments(save_environments(data, tmp_path / "saved"))
    assert again.whole == data.whole and len(again.split("hospital_2", 0)["in"]) == 6


def test_domainbed_leaves_every_hospital_out_in_turn_and_divides_all(tmp_path: Path) -> None:
    write_camelyon(tmp_path)
    data = DATASETS["Camelyon17"].load(tmp_path, 8)
    assert [len(data.split(domain, 0)["out"]) for domain in data.domains] == [1] * 5
    runs = plan_sweep("Camelyon17", ("ERM",), draws=1, trials=1).runs()
    assert [run.test_domains for run in runs] == [(hospital,) for hospital in wilds.HOSPITALS]


def test_fmow_counts_years_and_regions(tmp_path: Path) -> None:
    write_fmow(tmp_path)
    everything = DATASETS["FMoW"].load(tmp_path, 8)
    assert set(everything.sizes.values()) == {5 * 2 * 3}, "all but the sequestered images"
    data = DATASETS["FMoW-official"].load(tmp_path, 8)
    assert data.sizes["Asia"] == 12 and data.sizes["Asia (validation)"] == 6 == data.sizes["Asia (test)"]
    assert len(data.split("Asia", 0)["out"]) == 6, "validation images of the years that are trained on"
    assert len(data.split("Asia (test)", 0)["in"]) == 6
    (run,) = plan_sweep("FMoW-official", ("ERM",), draws=1, trials=1).runs()
    assert len(run.train_domains) == len(run.validation_domains) == len(run.test_domains) == 5


@pytest.mark.parametrize("name", ["Waterbirds", "CelebA"])
def test_groups_are_classes_within_domains(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path)
    known = DATASETS[name]
    data = known.load(tmp_path, 8)
    (run,) = plan_sweep(name, ("GroupDRO",), draws=1, trials=1).runs()
    assert known.selection == "worst-subgroup" and run.held_out == 0
    assert [len(part) for part in (run.train_domains, run.validation_domains, run.test_domains)] == [2, 2, 2]
    for domain in run.validation_domains:
        assert Counter(data.labels[data.split(domain, 0, run.held_out)["in"]].tolist()) == {0: 2, 1: 2}


def test_kaggles_folder_within_a_folder(tmp_path: Path) -> None:
    write_celeba(tmp_path, "img_align_celeba/img_align_celeba")
    assert len(DATASETS["CelebA"].load(tmp_path, 8).labels) == 24


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("Camelyon17", lambda text: text.replace("center", "centre"), "has no column 'center'"),
        ("Camelyon17", lambda text: text.replace(",0,0,0\n", ",0,7,0\n", 1), "'7' is not a number from 0 to 4"),
        ("Camelyon17", lambda text: text.replace(",64,", ",65,"), "30 of its 30 images are missing, e.g. "),
        (
            "Camelyon17",
            lambda text: text.replace(",4,1\n", ",3,1\n").replace(",4,0\n", ",3,0\n"),
            "no image of hospital_4",
        ),
        ("FMoW", lambda text: text.replace("zoo", "zoos"), "has category 'zoos'"),
        ("FMoW-official", lambda text: text.replace("2010-05", "May"), "and time 'May"),
        ("Waterbirds", lambda text: text.replace("001.Bird", "../001.Bird"), "leads elsewhere"),
        ("Waterbirds", lambda text: text.replace(",/f/forest/1.jpg", ',"f', 1), "metadata.csv, line"),
        ("CelebA", lambda text: text.replace("000003.jpg", "300000.jpg"), "has no row for 300000.jpg"),
    ],
)
def test_damaged_tables_are_one_line(name: str, change: Callable[[str], str], words: str, tmp_path: Path) -> None:
    table = WRITERS[name](tmp_path)
    before = table.read_text()
    table.write_text(change(before))
    assert table.read_text() != before
    with pytest.raises(UserError) as caught:
        DATASETS[name].load(tmp_path, 8)
    assert words in str(caught.value) and "\n" not in str(caught.value)


# Spawrious

BACKGROUNDS = ("beach", "desert", "dirt", "jungle", "mountain", "snow")


def write_spawrious(root: Path, count: int) -> None:
    """Every cell has its own shade; the number is in the file's name, as published."""
    for folder in range(2):
        for b, background in enumerate(BACKGROUNDS):
            for c, breed in enumerate(spawrious.BREEDS):
                for number in range(count):
                    file = (
                        root / "spawrious224" / str(folder) / background / breed / f"{background}_{breed}_{number}.png"
                    )
                    plain_picture(file, 100 * folder + 10 * b + c)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(spawrious, "PER_FOLDER", 12)
    monkeypatch.setattr(spawrious, "SHARES", (0.75, 0.5))
    return 12


def cells_of(data: Environments, domain: str) -> Counter[tuple[int, str, str]]:
    """(folder, background, breed by label) of the images of a domain."""
    rows = data.rows(domain)
    found: Counter[tuple[int, str, str]] = Counter()
    for red, label in zip(data.images[rows][:, 0, 4, 4].tolist(), data.labels[rows].tolist(), strict=True):
        folder, rest = divmod(red, 100)
        background, breed = divmod(rest, 10)
        assert breed == label
        found[folder, BACKGROUNDS[background], spawrious.BREEDS[label]] += 1
    return found


def test_one_to_one_gives_every_breed_its_background(tmp_path: Path, small: int) -> None:
    write_spawrious(tmp_path, small)
    data = DATASETS["SpawriousO2O_easy"].load(tmp_path, 8)
    own = {"bulldog": "desert", "dachshund": "jungle", "labrador": "dirt", "corgi": "snow"}
    unseen = {"bulldog": "dirt", "dachshund": "snow", "labrador": "desert", "corgi": "jungle"}
    for folder, (domain, count) in enumerate({"SC_group_1": 9, "SC_group_2": 6}.items()):
        expected = {(folder, own[breed], breed): count for breed in own}
        assert cells_of(data, domain) == expected | {(folder, "beach", breed): small - count for breed in own}
    assert cells_of(data, "Test") == {(f, unseen[breed], breed): small for breed in own for f in range(2)}


def test_many_to_many_swaps_the_backgrounds_of_two_breeds(tmp_path: Path, small: int) -> None:
    write_spawrious(tmp_path, small)
    data = DATASETS["SpawriousM2M_hard"].load(tmp_path, 8)
    first = {"bulldog": "dirt", "dachshund": "jungle", "labrador": "snow", "corgi": "beach"}
    second = {"bulldog": "jungle", "dachshund": "dirt", "labrador": "beach", "corgi": "snow"}
    tested = {"bulldog": "snow beach", "dachshund": "snow beach", "labrador": "dirt jungle", "corgi": "dirt jungle"}
    assert cells_of(data, "SC_group_1") == {(0, first[breed], breed): small for breed in first}
    assert cells_of(data, "SC_group_2") == {(0, second[breed], breed): small for breed in first}
    assert cells_of(data, "Test") == {(0, b, breed): small for breed in first for b in tested[breed].split()}


def test_datasets_are_evaluated_as_often_as_in_domainbed() -> None:
    """Its photographs every 300 steps, where they do not keep the 100 of all datasets."""
    often = {name for name, data in DATASETS.items() if data.scale == "image" and data.evaluate_every == 100}
    assert often == {"Camelyon17", "FMoW", *(f"Spawrious{setting}" for setting in spawrious.SETTINGS)}


@pytest.mark.parametrize("setting", spawrious.SETTINGS)
def test_each_setting_has_the_published_size(setting: str) -> None:
    """3,168 images in each folder: 12,672 in a training domain, 25,344 in the test."""
    sizes = {
        domain: sum(
            int(share * 3168) if share > 0 else 3168 - int(-share * 3168) for parts in by_breed for _, _, share in parts
        )
        for domain, by_breed in spawrious.cells(setting).items()
    }
    assert sizes == {"SC_group_1": 12_672, "SC_group_2": 12_672, "Test": 25_344}
    (run,) = plan_sweep(f"Spawrious{setting}", ("ERM",), draws=1, trials=1).runs()
    assert run.test_domains == ("Test",) and len(run.train_domains) == 2


def test_a_missing_background_is_named(tmp_path: Path) -> None:
    (tmp_path / "spawrious224" / "0").mkdir(parents=True)
    with pytest.raises(UserError, match=r"there is no folder .*0/dirt/bulldog"):
        DATASETS["SpawriousO2O_easy"].load(tmp_path, 8)
