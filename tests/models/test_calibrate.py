"""A calibrated model: its folder, its probabilities, its refusals, and its README."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import domainwise as dw
from commands import Command
from domainwise.cli import main
from domainwise.core.errors import UserError
from domainwise.models.calibrate import calibrate, calibrated, matching_runs
from domainwise.models.readme import escaped, readme
from domainwise.protocol.run_folder import RunFolder
from shown_progress import recorded_progress

OPTIONS = {"steps": 11, "hparams": {"batch_size": 8}, "device": "cpu"}


@pytest.fixture(scope="module")
def table() -> dw.Environments:
    random = np.random.default_rng(0)
    rows = {}
    for name, offset in (("north", 0.0), ("<b>|east", 1.0), ("west", -1.0)):
        y = random.integers(0, 3, 90)
        x = random.normal(size=(90, 4)) + offset
        x[:, 0] += 2 * y
        rows[name] = (x.astype(np.float32), y)
    return dw.Environments.from_arrays(rows, name="t", classes=("a", "b", "[x](javascript:1)"))


@pytest.fixture(scope="module")
def model(table: dw.Environments) -> dw.Model:
    return dw.fit(table, "ERM", **OPTIONS)


@pytest.fixture(scope="module")
def ready(table: dw.Environments, model: dw.Model) -> dw.Model:
    """Calibrated before any command has set up its own messages."""
    return calibrate(model, data=table)


def test_a_calibrated_model_is_saved_and_its_argmax_stays(
    table: dw.Environments, model: dw.Model, tmp_path: Path
) -> None:
    made = calibrate(model, data=table)
    assert made.card.calibration is not None and made.card.calibration.source == "held-out"
    assert "too confident on new domains" in made.calibration and made.temperature != 1.0
    made.save(tmp_path / "m")
    again = dw.load_model(tmp_path / "m", device="cpu")
    before, after = model.predict_proba(table.images), again.predict_proba(table.images)
    assert (before.argmax(1) == after.argmax(1)).all() and not np.allclose(before, after)
    np.testing.assert_array_equal(after, made.predict_proba(table.images))
    kept = again.predict(table.images, abstain="coverage=0.5")
    assert None in kept and {name for name in kept if name} <= set(table.classes)
    assert all(1 <= len(one) <= 3 for one in again.predict_sets(table.images, 0.9))
    (tmp_path / "m" / "calibration.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"calibration.safetensors is damaged"):
        dw.load_model(tmp_path / "m")


def test_unseen_domains_of_data_are_preferred(table: dw.Environments) -> None:
    model = dw.fit(table, "ERM", test_domains=["west"], **OPTIONS)
    made = calibrate(model, data=table)
    assert made.card.calibration is not None
    assert made.card.calibration.source == "unseen" and list(made.card.calibration.domains) == ["west"]


def test_a_folder_without_calibration_is_as_before(table: dw.Environments, model: dw.Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    assert "calibration" not in json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "README.md").unlink()
    loaded = dw.load_model(tmp_path, device="cpu")
    assert loaded.temperature == 1.0
    with pytest.raises(UserError, match="not calibrated"):
        loaded.predict(table.images[:2], abstain="risk=0.05")


def test_readme_escapes_names_and_keeps_edits(model: dw.Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    file = tmp_path / "README.md"
    text = file.read_text()
    assert text.startswith("---\nlibrary_name: domainwise\n")
    assert "<b>" not in text and "[x](" not in text and r"&lt;b&gt;\|east" in text
    assert "\n" not in escaped("a\nb") and escaped("<script>") == "&lt;script&gt;"
    model.save(tmp_path)
    assert file.read_text() == text
    file.write_text(f"{text}Mine.")
    model.save(tmp_path)
    assert file.read_text().endswith("Mine.")


def test_exported_probabilities_are_calibrated(table: dw.Environments, model: dw.Model, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    made = calibrate(model, data=table)
    session = onnxruntime.InferenceSession(str(made.export(tmp_path / "m.onnx")))
    rows = np.asarray(table.images[:7], np.float32)
    (found,) = session.run(["probabilities"], {"rows": rows})
    np.testing.assert_allclose(found, made.predict_proba(rows), atol=1e-4)


def test_a_search_calibrates_its_model(table: dw.Environments, tmp_path: Path) -> None:
    found = dw.tune(table, "ERM", candidates=1, workers=1, refit=True, evaluate_every=10, out=tmp_path, **OPTIONS).model
    assert found is not None and found.card.calibration is not None
    assert found.card.calibration.source == "unseen" and dict(found.card.calibration.domains) == dict(table.sizes)
    assert dw.load_model(tmp_path, device="cpu").temperature == found.temperature


def test_a_model_folder_that_cannot_be_written_to_is_found_before_the_work(
    model: dw.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, domainwise: Command
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    model.save(tmp_path / "model")
    monkeypatch.setattr("domainwise.core.files._try", refuse)
    monkeypatch.setattr("domainwise.models.calibrate.calibrate", lambda *_, **__: pytest.fail("the work was done"))
    monkeypatch.setattr("domainwise.cli.data_options.labelled_data", lambda *_: pytest.fail("the data were read"))
    told = domainwise("calibrate", tmp_path / "model", "--data", "photos")
    assert told.is_one_line_error and "cannot write to" in told.err and "Permission denied" in told.err


@pytest.mark.parametrize("wrong", ["abstain=risk=2", "abstain=often", "sets=1", "sets=x", "abstain=coverage=nan"])
def test_wrong_levels_are_one_line(
    wrong: str, ready: dw.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready.save(tmp_path)
    (tmp_path / "a.png").touch()
    name, _, value = wrong.partition("=")
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(tmp_path), str(tmp_path / "a.png"), f"--{name}", value])
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 2 and "\n" not in error and f"--{name}" in error


def test_a_sweep_that_left_each_domain_out_calibrates_a_model_of_all(
    table: dw.Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dw.tune(table, "ERM", candidates=1, workers=1, evaluate_every=10, out=tmp_path, **OPTIONS)
    data = next(tmp_path.glob("t-*"))
    model = dw.fit(str(data), "ERM", evaluate_every=10, **OPTIONS | {"hparams": found.hparams})
    shown = recorded_progress(monkeypatch)
    made = calibrate(model, sweep=tmp_path, device="cpu")
    assert shown["models that left a domain out"] == [3, 3]
    assert made.card.calibration is not None and made.card.calibration.source == "unseen"
    assert dict(made.card.calibration.domains) == dict(table.sizes)
    other = dw.fit(str(data), "ERM", evaluate_every=10, **OPTIONS | {"hparams": {"batch_size": 4}})
    with pytest.raises(UserError, match="no run with the model's settings left north out"):
        calibrate(other, sweep=tmp_path)


def test_too_few_samples_are_told(
    table: dw.Environments, model: dw.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = calibrate(model, data=table)
    few = next(iter(made.outcomes))
    parts = made.outcomes[few]
    made.outcomes[few] = replace(
        parts, confidence=parts.confidence[:7], correct=parts.correct[:7], truth=parts.truth[:7]
    )
    assert all(len(one) == 3 for one in made.predict_sets(table.images[:5], 0.9))
    assert f"need at least 9 samples of each calibration domain, {few} has 7" in caplog.text
    caplog.clear()
    assert made.predict_sets(table.images[:5], 0.8) and not caplog.text
    sure = np.tile([[0.0, 0.0, 1.0]], (30, 1)), np.full(30, 2)
    bad = calibrated(model, {"north": sure}, "held-out")
    assert "the temperature 0.05 is the lowest that is tried" in caplog.text
    assert "the lowest that is tried" in readme(bad.card)


def test_damaged_and_unfinished_runs_do_not_stop_a_calibration_by_other_trials(
    table: dw.Environments, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = dw.tune(table, "ERM", candidates=1, trials=2, workers=1, evaluate_every=10, out=tmp_path, **OPTIONS)
    model = dw.fit(str(next(tmp_path.glob("t-*"))), "ERM", evaluate_every=10, **OPTIONS | {"hparams": found.hparams})
    first, second = matching_runs(model, tmp_path), {folder.run.test_domains: folder for folder in trial_1(tmp_path)}
    (first[0].path / "run.json").write_text("{")
    (first[1].path / "records.jsonl").unlink()
    used = matching_runs(model, tmp_path)
    expected = [second[first[0].run.test_domains].path, second[first[1].run.test_domains].path, first[2].path]
    assert [folder.path for folder in used] == expected
    assert "left out: " in caplog.text and str(first[0].path) in caplog.text
    (expected[1] / "records.jsonl").unlink()
    with pytest.raises(UserError, match="has not ended"):
        matching_runs(model, tmp_path)


def trial_1(sweep: Path) -> list[RunFolder]:
    runs = [RunFolder.at(file.parent) for file in sweep.glob("*/run.json")]
    return [folder for folder in runs if folder.run.trial == 1]


def test_more_images_than_a_batch_are_progress(
    table: dw.Environments, model: dw.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = recorded_progress(monkeypatch)
    monkeypatch.setattr("domainwise.models.model.BATCH", 90)
    model.predict_proba(table.images[:90])
    assert not shown, "one batch, as of predict and of the server"
    model.predict_proba(table.images)
    assert shown["images through the model"] == [270, 270]
