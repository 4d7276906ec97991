"""From a folder of images to predictions, on the command line."""

import csv
import json
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import domainwise as dw
from commands import Command
from domainwise.cli import main
from domainwise.core import logs
from domainwise.data.find import find_dataset
from domainwise.models.stream import find_images, read_batches
from small_datasets import make_folder, picture


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images and a model trained on them by the command line."""
    root = tmp_path_factory.mktemp("shop")
    make_folder(root / "photos")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setenv("DOMAINWISE_CACHE", str(root / "cache"))
        patch.chdir(root)
        train = "train --dataset photos/ --algorithm DAT --test-domain lab --steps 3 --hparam batch_size=4 --device cpu"
        main([*train.split(), "--out", "model"])
    return root


@pytest.fixture
def domainwise(domainwise: Command, place: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(place / "cache"))
    monkeypatch.chdir(place)
    return domainwise


def test_train_leaves_a_model_and_its_records(place: Path) -> None:
    model = dw.load_model(place / "model", device="cpu")
    assert model.domains == ("clinic", "street") and model.classes == ("cat", "dog")
    assert model.card.training["accuracy"].keys() == {"clinic", "street", "lab"}
    assert (place / "model" / model.card.training["id"] / "records.jsonl").is_file()


def test_predictions_are_those_of_the_training_images_as_they_were_decoded(place: Path, domainwise: Command) -> None:
    result = domainwise("predict", "model", "photos", "--json")
    assert result.status == 0 and re.fullmatch(r"model: weights of step \d, selected by .* validation\n", result.err)
    rows = [json.loads(line) for line in result.out.splitlines()]
    data = find_dataset(str(place / "photos")).load()
    expected = dw.load_model(place / "model").predict_proba(data.images)
    assert len(rows) == 36 and rows[0]["file"] == "photos/clinic/cat/000.png"
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in rows], expected, atol=1e-6)
    assert [row["class"] for row in rows] == [("cat", "dog")[i] for i in expected.argmax(1)]


def test_lines_for_people_and_scripts(domainwise: Command) -> None:
    result = domainwise("predict", "model", "photos/lab/cat/000.png", "photos/lab/dog")
    lines = [line.split("\t") for line in result.out.splitlines()]
    assert [line[0] for line in lines] == ["photos/lab/cat/000.png", *(f"photos/lab/dog/{i:03d}.png" for i in range(6))]
    assert all(line[1] in ("cat", "dog") and 0.5 <= float(line[2]) <= 1 for line in lines)


def test_the_log_file_holds_what_was_asked_and_what_went_wrong(
    domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(logs.FILE, "")
    file = tmp_path / "log"
    domainwise("predict", "model", "absent.jpg", "photos/lab/cat/000.png", "--log-file", file)
    assert domainwise("predict", "nowhere", "photos").is_one_line_error
    logging.getLogger("domainwise").debug("\udcff")  # bytes that are no text, as in names of files
    monkeypatch.undo()
    logs.configure()
    asked, weights, unreadable, asked_again, wrong, odd = file.read_text().splitlines()
    assert "domainwise --log-file" in asked and asked_again.endswith("domainwise predict nowhere photos")
    assert "absent.jpg is no readable image" in unreadable and "error: nowhere is no model" in wrong
    assert odd.endswith(r"\udcff") and "weights of" in weights


def test_unreadable_images_are_named_and_the_rest_predicted(place: Path, domainwise: Command) -> None:
    (place / "bad [name].png").write_text("no picture")
    result = domainwise("predict", "model", "bad [name].png", "photos/lab/cat", "absent.jpg", "--csv", "told.csv")
    assert result.status == 1
    assert "bad [name].png is no readable image (not an image of a known format): leave it out\n" in result.err
    assert "absent.jpg is no readable image (No such file or directory): leave it out\n" in result.err
    assert result.err.endswith("2 of 8 images could not be read; the rest were predicted\n")
    with (place / "told.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 and list(rows[0]) == ["file", "class", "confidence", "cat", "dog"]
    assert all(float(row["cat"]) + float(row["dog"]) == pytest.approx(1, abs=1e-5) for row in rows)
    assert all(float(row["confidence"]) == float(row[row["class"]]) for row in rows)


def test_calibrate_says_which_weights_it_has_calibrated(place: Path, domainwise: Command) -> None:
    shutil.copytree("model", "calibrated")
    told = domainwise("calibrate", "calibrated", "--data", "photos")
    assert told.status == 0 and re.search(r"calibrated: weights of step \d, selected by .* validation\n", told.out)
    told = domainwise("calibrate", "calibrated", "--data", "photos", "--json")
    assert json.loads(told.out)["weights"].startswith("weights of step")


def test_folders_patterns_and_odd_names(place: Path, domainwise: Command) -> None:
    odd = place / "новые фото, 100%"
    odd.mkdir(exist_ok=True)
    for name in ("a\tb.png", "-x.png", "ü 'q'.jpeg"):
        picture(1).save(odd / name)
    (odd / "notes.txt").touch()
    assert [file.name for file in find_images([str(odd)])] == ["-x.png", "a\tb.png", "ü 'q'.jpeg"]
    assert find_images(["photos/lab/c*/00[01].png"]) == [Path(f"photos/lab/cat/00{i}.png") for i in (0, 1)]
    assert len(find_images(["photos/**/*.png"])) == 36
    (odd / "\udcff.png").write_bytes((odd / "-x.png").read_bytes())  # bytes that are no text
    result = domainwise("predict", "model", odd)
    assert result.status == 0 and "\ufffd.png\t" in result.out
    assert "a\\tb.png\t" in result.out and all(line.count("\t") == 2 for line in result.out.splitlines())
    assert domainwise("predict", "model", odd, "--csv", "odd.csv").status == 0
    assert b'\xff.png",' in Path("odd.csv").read_bytes()


def test_names_that_spreadsheets_would_compute_are_marked_in_csv_only(place: Path, domainwise: Command) -> None:
    picture(1).save("=1+1.png")
    assert domainwise("predict", "model", "=1+1.png", "--csv", "sheet.csv").status == 0
    assert Path("sheet.csv").read_text().splitlines()[1].startswith("'=1+1.png,")
    assert domainwise("predict", "model", "=1+1.png").out.startswith("=1+1.png\t")
    assert json.loads(domainwise("predict", "model", "=1+1.png", "--json").out)["file"] == "=1+1.png"


def test_hidden_files_are_ignored_as_in_training(place: Path, domainwise: Command) -> None:
    """What macOS leaves beside a picture is no picture; a folder given by its name is meant, whatever that is."""
    camera = place / ".hidden" / "camera"
    for file in ("._x.png", ".trash/x.png", "__MACOSX/camera/x.png"):
        (camera / file).parent.mkdir(parents=True, exist_ok=True)
        (camera / file).write_text("no picture")
    result = domainwise("predict", "model", camera)
    assert result.is_one_line_error and "no images in" in result.err
    picture(1).save(camera / "x.png")
    result = domainwise("predict", "model", camera)
    assert result.status == 0 and result.err.count("\n") == 1 and result.out.startswith(f"{camera}/x.png\t")
    assert domainwise("predict", "model", camera / "._x.png").status == 2, "named itself, it is read"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "nowhere", "photos"], "nowhere is no model"),
        (["predict", "photos", "photos"], "photos is no model"),
        (["predict", "model", "cache/none/*.png"], "no file matches"),
        (["predict", "model", "model"], "no images in model"),
        (["predict", "model", "photos", "--csv", "photos"], "is a folder"),
        (["predict", "model", "photos", "--domain", "lab"], "'lab' was not trained on"),
        (["predict", "model", "photos", "--device", "gpu"], "error: unknown device 'gpu': known: auto, cpu, cuda"),
        (["evaluate", "model", "--data", "nowhere"], "unknown dataset 'nowhere'"),
        (["evaluate", "model", "--data", "nowhere"], "there is no folder of that name either"),
        (["evaluate", "model", "--data", "BackgroundDigits", "--skip-bad"], "can be left out: other data are complete"),
        (["shift", "nowhere"], "there is no folder of that name either"),
        (["evaluate", "model", "--data", "model"], "no images found in"),
        (["evaluate", "model", "--data", "BackgroundDigits"], "images of 28 pixels only"),
    ],
)
def test_mistakes_are_one_line(domainwise: Command, arguments: list[str], words: str) -> None:
    result = domainwise(*arguments)
    assert result.is_one_line_error and words in result.err


def test_evaluate_tells_domains_and_classes(place: Path, domainwise: Command) -> None:
    told = json.loads(domainwise("evaluate", "model", "--data", "photos", "--json").out)
    data = find_dataset(str(place / "photos")).load()
    assert told == dw.load_model(place / "model").evaluate(data).as_json()
    shown = domainwise("evaluate", "model", "--data", "photos").out
    assert told["seen_in_training"] == 20 and "20 of 36 samples were seen in training" in shown
    assert "seen in" in shown and [told["domains"][name]["samples"] for name in ("clinic", "lab")] == [2, 12]
    assert "clinic (trained on)" in shown and "Average over unseen domains" in shown
    assert "calibration error" in shown and "probabilities are not calibrated" in shown
    wrong = sum(
        row["confusion"][a][b]
        for row in told["domains"].values()
        for a in row["confusion"]
        for b in row["confusion"][a]
        if a != b
    )
    assert ("Most often wrong: " in shown and " taken for " in shown and "true class" in shown) == (wrong > 0)
    assert f"{100 * told['domains']['lab']['accuracy']:.1f}" in shown


def test_a_few_labelled_images_are_enough_to_evaluate(place: Path, domainwise: Command) -> None:
    """Nothing is split here, so no domain is too small."""
    make_folder(place / "few", domains=("moon",), classes=("cat", "dog"), count=1, seed=1000)
    result = domainwise("evaluate", "model", "--data", "few", "--json")
    assert result.status == 0 and json.loads(result.out)["domains"]["moon"]["samples"] == 2


def test_evaluate_leaves_bad_images_out_if_told(place: Path, domainwise: Command) -> None:
    make_folder(place / "spoilt", domains=("moon",), count=2, seed=1000)
    bad = place / "spoilt" / "moon" / "cat" / "001.png"
    bad.write_bytes(b"")
    result = domainwise("evaluate", "model", "--data", "spoilt")
    assert result.is_one_line_error and "leave such images out (--skip-bad)" in result.err
    result = domainwise("evaluate", "model", "--data", "spoilt", "--skip-bad", "--json")
    assert result.status == 0 and result.err == f"note: left out {bad}: the file is empty\n"
    assert json.loads(result.out)["domains"]["moon"]["samples"] == 3
    for file in (place / "spoilt").rglob("*.png"):
        file.write_bytes(b"")
    result = domainwise("evaluate", "model", "--data", "spoilt", "--skip-bad")
    assert result.status == 2 and result.err.endswith(
        "error: spoilt/moon: 0 images; leave the domain out, or give it some\n"
    )


def test_evaluate_with_classes_the_model_has_not(place: Path, domainwise: Command) -> None:
    make_folder(place / "more", domains=("moon",), classes=("cat", "yeti"))
    result = domainwise("evaluate", "model", "--data", "more")
    assert result.is_one_line_error and "has a class 'yeti' unknown to the model (known: cat, dog)" in result.err


def test_evaluate_with_one_of_the_classes(place: Path, domainwise: Command) -> None:
    make_folder(place / "cats", domains=("moon",), classes=("cat",))
    result = domainwise("evaluate", "model", "--data", "cats", "--json")
    assert result.status == 0 and list(json.loads(result.out)["domains"]["moon"]["classes"]) == ["cat"]
    unreadable = domainwise("predict", "model", "cats/no.png")
    assert unreadable.is_one_line_error and unreadable.err.endswith("there was nothing to predict\n")
    both = domainwise("predict", "model", "cats/no.png", "cats/none.png")
    assert both.status == 2 and both.err.endswith(
        "error: none of 2 images could be read; there was nothing to predict\n"
    )


def test_a_model_whose_predictions_depend_on_their_group_says_so(place: Path, domainwise: Command) -> None:
    data = find_dataset(str(place / "photos")).load()
    arm = dw.fit(data, "ARM", steps=1, hparams={"batch_size": 4}, device="cpu")
    arm.save(place / "arm")
    result = domainwise("predict", "arm", "photos/lab", "--json")
    assert "predictions of ARM depend on the 4 images they are made with" in result.err
    told = [list(json.loads(line)["probabilities"].values()) for line in result.out.splitlines()]
    np.testing.assert_allclose(told, arm.predict_proba(data.images[data.rows("lab")]), atol=1e-6)


def test_models_that_no_file_fits(place: Path, domainwise: Command) -> None:
    draw = np.random.default_rng(0)
    for name, inputs in (("rows", draw.normal(size=(9, 4))), ("pairs", draw.integers(0, 9, (9, 2, 8, 8), np.uint8))):
        data = dw.Environments.from_arrays({"a": (inputs, np.arange(9) % 2)})
        dw.fit(data, "ERM", steps=1, hparams={"batch_size": 4}, device="cpu").save(place / name)
        for command in ("predict", "drift"):
            result = domainwise(command, name, "photos/lab")
            assert result.is_one_line_error and ("rows of 4 numbers" in result.err or "2 channels" in result.err)


def test_files_are_read_in_order_batch_by_batch(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("domainwise.models.model.BATCH", 5)
    model, found = dw.load_model("model"), find_images(["photos"])
    read = list(read_batches(found, model))
    assert [len(batch.files) for batch in read] == [5] * 7 + [1]
    assert [file for batch in read for file in batch.files] == found


def test_large_camera_files_are_read_like_training_images(place: Path) -> None:
    """The photograph is turned as its EXIF data says, and decoded at a fraction of its size, for both."""
    photograph = Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 1300, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    make_folder(place / "camera", domains=("phone",), classes=("cat",))
    photograph.save(place / "camera" / "phone" / "cat" / "zzz.jpg", exif=exif)
    data = find_dataset(str(place / "camera")).load()
    model = dw.load_model(place / "model", device="cpu")
    mine = model.predict_proba(place / "camera" / "phone" / "cat" / "zzz.jpg")
    assert np.array_equal(mine, model.predict_proba(data.images[-1:]))
