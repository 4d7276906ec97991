"""The user's own folder of images as a dataset."""

import math
import os
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import domainwise as dw
from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.find import find_dataset
from domainwise.data.sources.folder import image_folder, scan
from domainwise.engine.session import Session
from domainwise.protocol.dataset_names import title
from domainwise.sweeps.plan import Plan, plan_sweep
from domainwise.sweeps.plan_run import plan_run
from small_datasets import CLASSES, DOMAINS, make_folder, picture
from small_problems import quick


def spoil(photos: Path, where: str = "lab/dog/002.png") -> Path:
    file = photos / where
    file.write_bytes(file.read_bytes()[:-100])
    return file


# what is found


def test_domains_and_classes_are_the_sorted_names_of_folders(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos", domains=("b", "c", "a"), classes=("y", "x"), suffix=".JPG")
    data = find_dataset(str(photos))
    assert (data.domains, data.classes) == (("a", "b", "c"), ("x", "y"))
    environments = data.load(image_size=8)
    assert environments.sizes == {"a": 12, "b": 12, "c": 12} and environments.classes == ("x", "y")
    assert environments.labels.tolist() == ([0] * 6 + [1] * 6) * 3
    expected = Image.open(photos / "b" / "y" / "003.JPG").resize((8, 8), Image.Resampling.BILINEAR)
    row = environments.rows("b")[6 + 3]
    assert environments.images[row].permute(1, 2, 0).flatten().tolist() == list(expected.tobytes())


def test_classes_are_the_union_over_domains(tmp_path: Path) -> None:
    make_folder(tmp_path / "photos", domains=("lab",), classes=("cat", "dog"))
    make_folder(tmp_path / "photos", domains=("street",), classes=("dog", "fox"))
    environments = find_dataset(str(tmp_path / "photos")).load(image_size=8)
    assert environments.classes == ("cat", "dog", "fox")
    assert environments.labels.tolist() == [0] * 6 + [1] * 6 + [1] * 6 + [2] * 6


def test_stray_files_and_hidden_folders_are_ignored_and_noted(photos: Path) -> None:
    (photos / "readme.txt").touch()
    (photos / "lab" / "stray.png").touch()
    (photos / "lab" / "cat" / "notes.csv").touch()
    (photos / "lab" / "cat" / ".hidden.png").touch()
    (photos / "lab" / "cat" / "deeper").mkdir()
    for hidden in (".git", "__MACOSX"):
        (photos / hidden / "objects").mkdir(parents=True)
    found = scan(photos)
    assert found.domains == DOMAINS and found.classes == CLASSES and len(found.images) == 36
    other = ["readme.txt", "lab/cat/notes.csv", "lab/cat/.hidden.png", "lab/cat/deeper", ".git", "__MACOSX"]
    left_out = {kind: sorted(paths) for kind, paths in found.left_out.kinds.items() if paths}
    assert left_out == {"too_high": ["lab/stray.png"], "other": sorted(other)}
    high, stray = found.notes()
    assert high == "ignored 1 image too high: move down to DIR/<domain>/<class>/: lab/stray.png"
    assert stray.startswith("ignored 6 items that cannot be an image: ")
    assert scan(make_folder(photos.parent / "clean")).notes() == []


def test_names_that_cannot_be_printed_are_ignored_and_noted(photos: Path) -> None:
    odd = os.fsdecode(b"odd\xff")
    (photos / odd).mkdir()
    picture(1).save(photos / "lab" / "cat" / f"{odd}.png")
    found = scan(photos)
    assert found.domains == DOMAINS and len(found.images) == 36
    assert sorted(found.left_out.kinds["names"]) == ["lab/cat/odd?.png", "odd?"]


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_bears_a_class_that_is_missing_from_a_domain(tmp_path: Path, algorithm: str) -> None:
    make_folder(tmp_path / "photos", domains=("lab",), classes=("cat", "dog"))
    make_folder(tmp_path / "photos", domains=("street", "zoo"), classes=("dog",), count=12)
    data = image_folder(tmp_path / "photos")
    run = plan_run(data, algorithm, (), hparams=quick(algorithm), steps=3, image_size=16)
    session = Session(run, data.load(image_size=16), torch.device("cpu"))
    for _ in range(run.steps):
        session.step()
    assert math.isfinite(session.take_training_loss())


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ([], "no images found in .*: images belong at DIR/<domain>/<class>/<image>$"),
        (["cat/1.png", "dog/1.png"], "ignored 2 images too high: move down to .*: cat/1.png, dog/1.png"),
        (["lab/cat/new/1.png"], "ignored 1 image too deep: move up to .*: lab/cat/new/1.png"),
        (["lab/cat/1.HEIC"], "ignored 1 picture of a format that is not read: convert .*: lab/cat/1.HEIC"),
        (["lab/cat/1.txt"], "no images found"),
    ],
)
def test_a_folder_without_images_at_their_place_is_a_users_error(
    tmp_path: Path, layout: list[str], message: str
) -> None:
    for name in layout:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=message):
        find_dataset(str(tmp_path))


def test_what_is_neither_a_dataset_nor_a_folder_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere is not a folder: images belong at"):
        find_dataset(str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="unknown dataset 'BackgroundDigit': did you mean 'BackgroundDigits'"):
        find_dataset("BackgroundDigit")
    with pytest.raises(UserError, match="there is no folder of that name either"):
        find_dataset("BackgroundDigit")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is not a folder"):
        find_dataset(str(tmp_path / "file"))


def test_a_domain_too_small_to_be_split_is_a_users_error(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos", count=2)
    data = find_dataset(str(photos)).load(image_size=8)
    assert data.sizes["clinic"] == 4, "nothing is split yet"
    with pytest.raises(UserError, match="photos/clinic: 4 images; a domain needs at least 5 to be split"):
        data.split("clinic", 0)
    assert len(data.split("clinic", 0, held_out=0.0)["in"]) == 4


# what it is called, and what a run of it is


def test_a_folder_is_found_by_any_way_to_its_path(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (photos.parent / "link").symlink_to(photos)
    monkeypatch.chdir(photos.parent)
    names = {find_dataset(way).name for way in ("photos", "./photos/", "link", str(photos), f"{photos}/../photos")}
    assert len(names) == 1
    (name,) = names
    assert name.startswith(f"{photos.resolve()}#") and find_dataset(name).name == name
    assert title(name) == "photos" == find_dataset(name).title
    assert title("BackgroundDigits") == "BackgroundDigits"
    assert str(plan_run("photos", "ERM", "lab")) == "ERM on photos, unseen lab, trial 0"


def test_a_changed_folder_makes_another_run_and_the_old_one_refuses_it(photos: Path, tmp_path: Path) -> None:
    before = plan_run(str(photos), "ERM", "lab", image_size=8, steps=1)
    assert before.id == plan_run(str(photos), "ERM", "lab", image_size=8, steps=1).id
    picture(1000).save(photos / "lab" / "cat" / "new.png")
    after = plan_run(str(photos), "ERM", "lab", image_size=8, steps=1)
    assert before.id != after.id
    with pytest.raises(UserError, match=r"the images in .*photos have changed since this run was planned"):
        dw.train(before, tmp_path / "runs", device="cpu")


def test_bad_images_stop_a_run_or_are_left_out_of_it(photos: Path, tmp_path: Path) -> None:
    file = spoil(photos)
    with pytest.raises(UserError, match=rf"cannot decode {file}: .*truncated"):
        find_dataset(str(photos)).load(image_size=8)
    skipping = image_folder(photos, skip_bad=True)
    environments = find_dataset(skipping.name).load(image_size=8)
    assert environments.sizes == {"clinic": 12, "lab": 11, "street": 12}
    assert environments.labels[environments.rows("lab")].tolist() == [0] * 6 + [1] * 5
    with_all, without = (plan_run(data, "ERM", "lab") for data in (str(photos), skipping))
    assert with_all.id != without.id, "leaving images out is part of what a run is"
    assert title(skipping.name) == "photos"


def test_normalisation_is_a_constant(photos: Path) -> None:
    before = find_dataset(str(photos)).load(image_size=8)
    for file in (photos / "lab").rglob("*.png"):
        Image.new("RGB", (5, 5), "white").save(file)
    after = find_dataset(str(photos)).load(image_size=8)
    assert not torch.equal(before.images, after.images)
    assert torch.equal(before.mean, after.mean) and torch.equal(before.std, after.std)
    assert before.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert before.std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])


def test_images_stay_in_the_file_that_holds_them(photos: Path) -> None:
    environments = find_dataset(str(photos)).load(image_size=8)
    maps = Path("/proc/self/maps").read_text().splitlines()
    ours = [line.split()[0] for line in maps if os.environ["DOMAINWISE_CACHE"] in line and "/photos-" in line]
    areas = [[int(text, 16) for text in area.split("-")] for area in ours]
    assert any(start <= environments.images.data_ptr() < end for start, end in areas)


def test_loading_again_reads_no_image(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_dataset(str(photos)).load(image_size=8)
    monkeypatch.setattr("domainwise.data.images.cache.decode", None)
    assert find_dataset(str(photos)).load(image_size=8) is first


def test_from_images_copies_nothing() -> None:
    images = torch.zeros(10, 3, 4, 4, dtype=torch.uint8)
    data = Environments.from_images(images, torch.arange(10) % 2, {"a": 5, "b": 5}, name="x")
    assert data.images is images and data.domains == ("a", "b")


def test_a_plan_means_the_state_it_was_made_in(photos: Path) -> None:
    plan = plan_sweep(str(photos), ("ERM",), draws=1, trials=1)
    runs = plan.runs()
    assert [run.test_domains for run in runs] == [(domain,) for domain in DOMAINS]
    picture(1000).save(photos / "lab" / "cat" / "new.png")
    assert Plan.from_description(plan.describe()).runs() == runs
    assert plan_sweep(str(photos), ("ERM",), draws=1, trials=1).runs() != runs


PACS = Path(os.environ.get("DOMAINWISE_DATA", "")) / "PACS"


@pytest.mark.slow
@pytest.mark.skipif(not (PACS / "photo").is_dir(), reason="needs the folder PACS in $DOMAINWISE_DATA")
def test_a_run_on_pacs_starts_within_two_seconds_of_opening_it_again() -> None:
    environments = image_folder(PACS).load(image_size=64)
    assert environments.sizes == {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    began = time.process_time()
    again = image_folder(PACS).loader(PACS.parent, 64)  # past the environments that are kept in memory
    run = plan_run(image_folder(PACS), "ERM", "sketch", hparams={"batch_size": 8})
    Session(run, again, torch.device("cpu")).step()
    assert time.process_time() - began < 2
    assert torch.equal(again.images, environments.images)
