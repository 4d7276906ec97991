"""Tables of image files on the command line: a camera trap's, from check to predictions."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import Command
from domainwise.data.sources.manifest import table_of_folder
from domainwise.models.folder import load_model
from domainwise.protocol.runs import Run
from domainwise.sweeps.reading import RunRecords, read_runs
from small_datasets import make_folder, picture

FEW = ("--hparam", "batch_size=2", "--steps", 2, "--device", "cpu", "--network", "small-cnn", "--image-size", 16)
COLUMNS = "path=file,label=species,domain=location,group=animal,time=taken"


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of three locations: bursts of three, foxes rare, one file missing, one copied within its burst."""
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "root").mkdir()
    (tmp_path / "images").mkdir()
    lines = ["file,species,location,animal,taken"]
    for number in range(54):
        location, burst = "ABC"[number // 18], number // 3
        picture(number).save(tmp_path / "images" / f"{number:02d}.png")
        species = "fox" if burst % 6 == 5 else "deer"
        taken = f"2026-05-{burst % 6 + 1:02d} 06:00:{10 * (number % 3):02d}"
        lines.append(f"images/{number:02d}.png,{species},{location},,{taken}")
    shutil.copy("images/03.png", "images/04.png")
    (tmp_path / "traps.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "traps.csv"


def test_from_check_to_predictions(traps: Path, domainwise: Command) -> None:
    reading = ("--columns", COLUMNS, "--bursts", "time:30s")
    told = domainwise("data", "check", traps, *reading, "--json")
    assert told.status == 0, told.err
    found = json.loads(told.out)
    assert found["domains"] == ["A", "B", "C"] and found["counts"]["A"] == {"deer": 15, "fox": 3}
    assert len(found["duplicates"]) == 1 and not any("several times" in line for line in found["warnings"])
    apart = json.loads(domainwise("data", "check", traps, "--columns", COLUMNS, "--json").out)
    assert any("1 image several times in one domain" in line for line in apart["warnings"]), "without bursts they leak"

    (traps.parent / "images/20.png").unlink()
    stopped = domainwise("train", "--data", traps, *reading, *FEW)
    assert stopped.is_one_line_error and "20.png, which is no file" in stopped.err and "--skip-bad" in stopped.err
    assert domainwise("data", "check", traps, *reading).status == 2
    trained = domainwise("train", "--data", traps, *reading, "--skip-bad", "--test-domain", "C", *FEW, "--json")
    assert trained.status == 0, trained.err
    run = Run.from_description(json.loads(trained.out)["run"])
    assert run.test_domains == ("C",) and "bursts=30s" in run.dataset and "domain=location" in run.dataset
    assert "left out 1 row whose files are missing" in trained.err

    counts = load_model(traps.parent / "runs/train").card.training["counts"]
    assert counts == {"A": {"deer": 12, "fox": 3}, "B": {"deer": 12, "fox": 3}}, "without held-out bursts"
    evaluated = domainwise("evaluate", "runs/train", "--data", traps, *reading, "--skip-bad", "--json")
    assert evaluated.status == 0 and set(json.loads(evaluated.out)["domains"]) >= {"C"}
    predicted = domainwise("predict", "runs/train", "images")
    assert predicted.status == 0 and len(predicted.out.splitlines()) == 53


def test_sweep_and_compare_read_tables(traps: Path, domainwise: Command, quick_workers: None) -> None:
    small = (*FEW, "--hparams", 1, "--trials", 1, "--algorithms", "ERM", "--workers", 1)
    named = ("--columns", COLUMNS.replace("domain=location,", ""), "--domain-column", "location")
    swept = domainwise("sweep", "--data", traps, *named, *small, "--out", "runs/sweep", "--json")
    assert swept.status == 0, swept.err
    assert json.loads(swept.out)["tables"][0]["columns"] == ["A", "B", "C"]
    runs = [found.run for _, found in read_runs(Path("runs/sweep")) if isinstance(found, RunRecords)]
    assert len(runs) == 3 and all(run.dataset.startswith(str(traps)) for run in runs)
    compared = domainwise("compare", "--data", traps, *named, *small, "--out", "model")
    assert compared.status == 0, compared.err
    assert load_model(Path("model")).classes == ("deer", "fox")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--columns", "camera"), "--columns 'camera': write ROLE=COLUMN"),
        (("--columns", "domain="), "the domain needs a column"),
        (("--columns", "domain=a,domain=b"), "each role once"),
        (("--columns", "camera=location"), "unknown kind of column 'camera'"),
        (("--columns", "domain=location", "--domain-column", "location"), "not both"),
        (("--columns", COLUMNS.replace("location", "place")), "no column 'place' for the domain"),
        (("--window", "9"), "write LOW:HIGH"),
        (("--window", "9:3"), "write LOW:HIGH"),
        (("--bursts", "often"), "write time and a gap"),
        (("--columns", COLUMNS, "--root", "nowhere"), "which is no file (and 53 more)"),
    ],
)
def test_mistakes_are_one_line(traps: Path, domainwise: Command, arguments: tuple[str, ...], message: str) -> None:
    result = domainwise("train", "--data", traps, *arguments, *FEW)
    assert result.is_one_line_error and message in result.err, result.err


def test_columns_of_a_folder_are_refused(tmp_path: Path, domainwise: Command) -> None:
    result = domainwise("data", "check", make_folder(tmp_path / "photos"), "--domain-column", "camera")
    assert result.is_one_line_error and "is a folder, which has no columns" in result.err


def test_a_table_of_a_folder(tmp_path: Path, domainwise: Command) -> None:
    photos = make_folder(tmp_path / "photos")
    told = domainwise("data", "manifest", photos, "--out", tmp_path / "photos.csv")
    assert told.status == 0 and "36 images; next: domainwise data check" in told.out
    assert (tmp_path / "photos.csv").read_text().splitlines()[:2] == [
        "path,label,domain",
        "photos/clinic/cat/000.png,cat,clinic",
    ]
    assert domainwise("data", "check", tmp_path / "photos.csv").status == 0
    wrong = domainwise("data", "manifest", photos, "--out", tmp_path / "photos.txt")
    assert wrong.is_one_line_error and "written as .csv" in wrong.err
    assert domainwise("data", "manifest", tmp_path / "nowhere", "--out", "x.csv").is_one_line_error


def test_copies_across_given_splits_are_found(tmp_path: Path, domainwise: Command) -> None:
    photos = make_folder(tmp_path / "photos")
    shutil.copy(photos / "lab/cat/000.png", photos / "lab/cat/001.png")
    shutil.copy(photos / "lab/dog/000.png", photos / "lab/dog/001.png")
    table = tmp_path / "photos.csv"
    table_of_folder(photos, table)
    header, *rows = table.read_text().splitlines()
    given = [row + (",val" if "cat/001" in row else ",train") for row in rows]
    table.write_text("\n".join([f"{header},split", *given]) + "\n")
    (warning,) = json.loads(domainwise("data", "check", table, "--json").out)["warnings"]
    assert warning.startswith("1 image in training and validation") and "cat/001.png" in warning


def test_a_window_is_remembered_by_the_model(tmp_path: Path, domainwise: Command) -> None:
    photos = make_folder(tmp_path / "photos")
    deep = np.random.default_rng(0).integers(0, 4096, (36, 20, 20), dtype=np.uint16)
    for file, pixels in zip(sorted(photos.rglob("*.png")), deep, strict=True):
        Image.fromarray(pixels).save(file)
    warned = domainwise("data", "check", photos)
    assert "add --window 0:4095 here" in warned.out
    windowed = domainwise("data", "check", photos, "--window", "0:4095")
    assert "--window" not in windowed.out and "greys 0 to 4095 become 0 to 255" in windowed.out
    out = tmp_path / "model"
    trained = domainwise(
        "train", "--data", photos, "--window", "0:4095", *FEW, "--save", "last", "--out", out, "--json"
    )
    assert trained.status == 0, trained.err
    model = load_model(out)
    assert model.card.window == (0, 4095)
    file = photos / "clinic/cat/000.png"
    wide = np.clip(deep[0].astype(np.float64) * 255 / 4095, 0, 255).round().astype(np.uint8)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    first, second, dark = (model.predict_proba(path)[0] for path in (file, tmp_path / "wide.png", file))
    assert np.allclose(first, second, atol=1e-3) and np.array_equal(first, dark)
    evaluated = domainwise("evaluate", out, "--data", photos, "--json")
    assert evaluated.status == 0 and "warning" not in evaluated.err
    other = domainwise("evaluate", out, "--data", photos, "--window", "0:100", "--json")
    assert "warning: images are read with the window 0:100, not 0:4095" in other.err
    damaged = json.loads((out / "model.json").read_text()) | {"window": [5, 2]}
    (out / "model.json").write_text(json.dumps(damaged))
    broken = domainwise("predict", out, file)
    assert broken.is_one_line_error and "window" in broken.err
