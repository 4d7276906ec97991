"""The README of a model's folder: data, accuracies with intervals, selection, calibration, limits, licence, command."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import domainwise as dw
from commands import Command
from domainwise.data.sources.saved import load_environments, save_environments
from domainwise.models.calibrate import calibrate
from domainwise.protocol.statistics import wilson
from domainwise.sweeps.commands import without_paths
from small_tables import rows_of, write

SETTINGS = {"steps": 11, "evaluate_every": 5, "hparams": {"batch_size": 8}, "image_size": 16, "network": "small-cnn"}


def text_of(model: dw.Model, folder: Path) -> str:
    return (model.save(folder) / "README.md").read_text().replace("\\", "")


def row(text: str, *beginning: str) -> list[str]:
    """The cells of the first row of a table that begins so."""
    start = "| " + " | ".join(beginning) + " |"
    line = next(line for line in text.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 8), (3, 8), (50, 100), (999, 1000)])
def test_intervals_are_wilsons(right: int, n: int) -> None:
    expected = binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_it_says_everything_of_a_training(photos: Path, tmp_path: Path) -> None:
    model = dw.fit(photos, "ERM", test_domains=["street"], device="cpu", **SETTINGS)
    text = text_of(model, tmp_path / "model")
    facts = json.loads((tmp_path / "model" / "model.json").read_text())["training"]
    for title in ("Data", "Accuracy", "Selection", "Calibration", "Limits", "Licence", "Made by"):
        assert text.count(f"\n## {title}\n") == 1
    assert row(text, "clinic")[1] == str(model.card.domains["clinic"]) and "cat: " in text
    for domain, split, words in (("clinic", "out", "held out"), ("street", "in", "unseen (in)")):
        cells, value = row(text, domain, words), facts["accuracy"][domain][split]
        n = facts["samples"][domain][split]
        low, high = wilson(value, n)
        assert cells[2:4] == [str(n), f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"]
        assert cells[4] == f"{100 * facts['metrics'][domain][split]['balanced_accuracy']:.1f}"
    assert f"\n{model.weights}.\n" in text and "accuracy on unseen domains" in text
    assert "not calibrated" in text and "It starts from random weights." in text
    assert "resized to 16 x 16" in text and f"domainwise {dw.__version__}" in text


def test_its_command_makes_the_same_model(photos: Path, tmp_path: Path, domainwise: Command) -> None:
    model = dw.fit(photos, "DAT", save="last", device="cpu", **SETTINGS)
    text = text_of(model, tmp_path / "first")
    (command,) = [line.strip() for line in text.splitlines() if line.startswith("    domainwise train ")]
    assert command.endswith("--save last") and "--data photos " in command
    assert str(tmp_path) not in text, "where the data lie here is nobody's business"
    done = domainwise(*shlex.split(command)[1:], "--device", "cpu")
    assert done.status == 0, done.err
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16), dtype=np.uint8)
    np.testing.assert_array_equal(
        dw.load_model("model", device="cpu").predict_proba(images), model.predict_proba(images)
    )


def test_it_says_on_what_probabilities_are_calibrated_and_what_depends_on_the_batch(
    photos: Path, tmp_path: Path
) -> None:
    model = calibrate(dw.fit(photos, "ERM", device="cpu", **SETTINGS), data=str(photos))
    text = text_of(model, tmp_path / "calibrated")
    assert model.calibration in text.replace("&gt;", ">")
    assert "calibrated on held-out images of the training domains: too confident" in text
    titles = row(text, "domain", "samples are")
    assert [title for title in titles if "before calibration" in title] == [
        "AUROC, before calibration, per cent",
        "negative log-likelihood, before calibration",
        "calibration error, before calibration, per cent",
    ], "the numbers of the training, from logits that no temperature divided"
    assert "before calibration" not in text_of(dw.fit(photos, "ERM", device="cpu", **SETTINGS), tmp_path / "before")
    batches = dw.fit(photos, "MTL", device="cpu", **SETTINGS)
    assert "all of its inputs must come from one domain" in text_of(batches, tmp_path / "batches")


def test_data_in_memory_have_no_command(tmp_path: Path) -> None:
    rows = {name: (np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 2) for name in "ab"}
    table = dw.Environments.from_arrays(rows, name="t", classes=("x", "y"))
    text = text_of(dw.fit(table, "ERM", steps=3, hparams={"batch_size": 4}, device="cpu"), tmp_path / "model")
    assert "Classifies rows of 4 numbers into 2 classes: x, y." in text and "domainwise train" not in text


def test_the_licence_of_pretrained_weights_is_named(photos: Path, tmp_path: Path) -> None:
    model = dw.fit(photos, "ERM", device="cpu", **SETTINGS)
    run = model.card.training["run"] | {"weights": "resnet18-f37072fd.pth#f37072fd47e89c5e"}
    model.card.training["run"] = run
    assert "resnet18-f37072fd.pth, licence: BSD-3-Clause" in text_of(model, tmp_path / "known")
    model.card.training["run"] = run | {"weights": "own.pth#0123456789abcdef"}
    assert "own.pth, licence: unknown" in text_of(model, tmp_path / "unknown")


def table_with_test_rows(photos: Path) -> Path:
    """Rows of train and test in clinic and lab; all rows of street are test."""
    rows = rows_of(photos)
    for number, row in enumerate(rows):
        row["split"] = "test" if row["domain"] == "street" else ("train", "test")[number % 2]
    return write(photos / "table.csv", rows)


def test_test_rows_of_a_training_domain_are_not_unseen(photos: Path, tmp_path: Path, domainwise: Command) -> None:
    table = table_with_test_rows(photos)
    found = domainwise("train", "--data", table, "--steps", 3, "--image-size", 16, "--out", "model", "--device", "cpu")
    assert found.status == 0, found.err
    assert "lab (test) (test rows of a training domain)" in found.out and "street (test) (unseen)" in found.out
    model = dw.load_model("model", device="cpu")
    assert list(model.card.training["unseen"]["domains"]) == ["street (test)"]
    assert set(model.card.training["test_rows"]["domains"]) == {"clinic (test)", "lab (test)"}
    text = text_of(model, tmp_path / "again")
    assert "over 1 pair of domain left out and trial" in text
    assert "accuracy on test rows of a training domain " in text and "nothing about unseen domains" in text
    assert row(text, "lab (test)", "test rows of a training domain (in)") and row(text, "street (test)", "unseen (in)")

    scores = model.evaluate(table)
    assert scores.domains["lab (test)"].test_rows and not scores.domains["street (test)"].trained_on
    assert scores.average_unseen == scores.accuracy["street (test)"]
    assert calibrate(model, data=table).card.calibration.domains == {"street (test)": 12}  # type: ignore[union-attr]
    rows = [one for one in rows_of(photos) if one["domain"] != "street"]
    splits = ("train", "test")
    known = write(photos / "known.csv", [one | {"split": splits[i % 2]} for i, one in enumerate(rows)])
    calibrated = calibrate(model, data=known).card.calibration
    assert calibrated is not None and calibrated.source == "held-out"


def test_test_rows_in_memory_are_not_trained_on(photos: Path, tmp_path: Path) -> None:
    data = dw.load_dataset(table_with_test_rows(photos), image_size=16)
    assert dw.fit(data, "ERM", steps=3, hparams={"batch_size": 8}, device="cpu").domains == ("clinic", "lab")
    folder = save_environments(data, tmp_path / "saved")
    assert load_environments(folder).given_test == data.given_test


def front_of(text: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="needs pyyaml, of the extra dev")
    return yaml.safe_load(text.split("---\n")[1])


def test_a_hub_can_read_its_first_lines(photos: Path, tmp_path: Path) -> None:
    odd = photos.rename(photos.with_name("a: 'b' \"c\" #1 [d] é"))
    model = dw.fit(odd, "ERM", test_domains=["street"], device="cpu", **SETTINGS)
    front = front_of((model.save(tmp_path / "model") / "README.md").read_text())
    assert front["license"] == "unknown" and front["library_name"] == "domainwise" and front["metrics"] == ["accuracy"]
    (index,) = front["model-index"]
    (result,) = index["results"]
    assert result["task"]["type"] == "image-classification" and result["dataset"]["name"] == odd.name
    (metric,) = result["metrics"]
    assert metric["type"] == "accuracy" and metric["value"] == model.card.training["unseen"]["mean"]
    everywhere = dw.fit(odd, "ERM", device="cpu", **SETTINGS)
    assert "model-index" not in front_of((everywhere.save(tmp_path / "all") / "README.md").read_text())


@pytest.mark.parametrize("save", ["last", "best"])
def test_held_out_samples_are_said_to_select_only_where_they_did(photos: Path, tmp_path: Path, save: str) -> None:
    text = text_of(dw.fit(photos, "ERM", device="cpu", save=save, **SETTINGS), tmp_path / "model")
    assert ("Held-out samples have helped to select the weights." in text) == (save == "best")


def test_a_command_without_paths_reads_the_data_as_before() -> None:
    name = "/home/me/traps.csv#0123456789abcdef,skip-bad?domain=camera&root=%2Fmnt%2Fimages&window=0%3A4095&bursts=30s"
    words = without_paths(["domainwise", "train", "--dataset", name, "--weights", "/home/me/own.pth"])
    assert words[2:4] == ["--data", "traps.csv"] and "/" not in "".join(words)
    assert shlex.join(words[4:]) == (
        "--columns domain=camera --root images --window 0:4095 --bursts time:30s --skip-bad --weights own.pth"
    )
    assert without_paths(["--dataset", "PACS"]) == ["--dataset", "PACS"]
