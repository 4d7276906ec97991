"""What the page shows of trained models: from real runs, and why not where something is missing."""

import base64
import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from browser import Browser, needs_chromium
from domainwise.analysis.predictions import held_out_images, predictions
from domainwise.cli import main
from domainwise.data.sources.folder import image_folder
from domainwise.engine.restore import restore
from domainwise.engine.train import train
from domainwise.reports.page import models
from domainwise.reports.page.models import ModelOptions
from domainwise.reports.page.write import write_page
from domainwise.sweeps.plan_run import plan_run
from small_datasets import make_folder

UNSEEN = ("scene1", "scene2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ERM, UAT and DAT after a few steps, two domains left out in turn, with models."""
    folder = tmp_path_factory.mktemp("trained")
    for unseen in UNSEEN:
        for algorithm in ("ERM", "UAT", "DAT"):
            run = plan_run("BackgroundDigits", algorithm, [unseen], steps=4, hparams={"batch_size": 8})
            train(run, folder)
    return folder


@pytest.fixture(scope="module")
def whole(trained: Path) -> tuple[Path, list[str]]:
    """Its page, and what was told while it was made."""
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "SHIFT_IMAGES", 200)
        options = ModelOptions(progress=lambda what, done, total: told.append(f"{what}: {done} of {total}"))
        return write_page(trained, models=options)[0], told


def page(folder: Path) -> str:
    return write_page(folder, models=ModelOptions())[0].read_text()


def test_attention_audit_and_perturbations_of_every_unseen_domain(whole: tuple[Path, list[str]]) -> None:
    text, told = whole[0].read_text(), whole[1]
    assert told == [
        *(f"models, scene1 unseen: {done} of 7" for done in range(4)),
        *(f"models, scene2 unseen: {done} of 7" for done in range(3, 7)),
        "shift: 6 of 7",
    ]
    for heading in ("Attention", "What did it use?", "Confusion matrices", "Probabilities", "Perturbations"):
        part = text[text.index(f">{heading}</h3>") :]
        assert all(f"<summary>Unseen: {unseen}</summary>" in part for unseen in UNSEEN)
    pictures = [base64.b64decode(data) for data in re.findall(r"data:image/png;base64,([^\"]+)", text)]
    assert len(pictures) == 2 * (5 * len(UNSEEN) + 1), (
        "in light and dark: heatmaps, audit, probabilities, UAT's and DAT's perturbations; the shift"
    )
    grounds = []
    for picture in pictures:
        with Image.open(io.BytesIO(picture)) as image:
            assert image.width > 300
            grounds.append(image.convert("RGB").getpixel((0, 0)))
    assert grounds == [(13, 17, 23), (255, 255, 255)] * (len(pictures) // 2)
    assert "% of the heat on the object" in text and "Does the perturbation fit the background?" in text
    assert "Which shift is it?" in text and "diversity shift dominates" in text
    assert "ot shown" not in text and "ot estimated" not in text
    assert text.count("(unseen)") >= 4 and "background alone" in text


def test_confusion_matrices_are_those_of_the_models_shown_and_weights_are_named(
    trained: Path, whole: tuple[Path, list[str]]
) -> None:
    text = whole[0].read_text()
    run = plan_run("BackgroundDigits", "ERM", ["scene1"], steps=4, hparams={"batch_size": 8})
    model = restore(trained / run.id)
    assert f"ERM: {model.weights}; UAT: " in text and "weights of " in model.weights
    shown = text[text.index(">Confusion matrices</h3>") :]
    first = shown[shown.index("<tbody>") : shown.index("</tbody>")]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in re.findall("<tr>.*?</tr>", first)]
    (held,) = (held for held in held_out_images(model) if held.domain == "scene1")
    data = model.environments
    predicted, truth = predictions(model, data.images[held.rows], "scene1"), data.labels[held.rows]
    for label, cells in enumerate(rows):
        of_class = predicted[truth == label]
        shares = [100 * float((of_class == other).double().mean()) for other in range(10)]
        assert cells == [*(f"{share:.0f}" if share >= 0.5 else "" for share in shares), str(len(of_class))]


@needs_chromium
def test_every_picture_loads(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    browser = Browser(tmp_path / "profile")
    try:
        for width in (390, 1440):
            browser.open(whole[0], width=width)
            loaded = browser.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 100)")
            overflow = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert len(loaded) == 11 and all(loaded) and overflow == 0 and browser.complaints == []
    finally:
        browser.close()


def test_records_alone_where_models_are_not_wanted_or_not_there(trained: Path, tmp_path: Path) -> None:
    assert ">Attention</h3>" not in write_page(trained, tmp_path / "page.html")[0].read_text()
    run = plan_run("BackgroundDigits", "ERM", ["scene1"], steps=2, hparams={"batch_size": 8})
    model = train(run, tmp_path).folder / "model.safetensors"
    whole = model.read_bytes()
    model.unlink()
    assert "not shown: no model was kept with these runs" in page(tmp_path)
    model.write_bytes(whole[:100])
    model.with_name("best.safetensors").unlink(missing_ok=True)
    text = page(tmp_path)
    assert re.search("not shown: .*model.safetensors is damaged", text), text[text.index("not shown: ") :][:300]


@pytest.mark.slow
def test_whom_the_page_leaves_out_it_names(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "FEW", 2)
    monkeypatch.setattr(models, "SHIFT_IMAGES", 100)
    totals: set[int] = set()
    options = ModelOptions(progress=lambda _what, _done, total: totals.add(total))
    text = write_page(trained, tmp_path / "page.html", models=options)[0].read_text()
    assert totals == {2 * 2 + 1}, "ERM and DAT, as in the paper, not UAT; and the shift"
    words = "Of 3 methods, those of the paper&#39;s heatmaps; not shown: UAT."
    for heading, end in (("Attention", "What did it use?"), ("What did it use?", "Confusion matrices")):
        part = text[text.index(f">{heading}</h3>") : text.index(f">{end}</h3>")]
        assert part.count(words) == len(UNSEEN)


@pytest.mark.slow
def test_a_method_whose_model_was_not_kept_is_named(tmp_path: Path) -> None:
    for algorithm in ("ERM", "UAT"):
        run = plan_run("BackgroundDigits", algorithm, ["scene1"], steps=2, hparams={"batch_size": 8})
        outcome = train(run, tmp_path)
    (outcome.folder / "model.safetensors").unlink()
    assert page(tmp_path).count("Not shown, for want of a model of the same trial: UAT.") == 2


def test_too_few_images_for_the_shift_leave_the_rest_whole(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos", count=12)
    run = plan_run(image_folder(photos), "ERM", ["lab"], steps=2, hparams={"batch_size": 4}, image_size=32)
    train(run, tmp_path / "runs")
    text = page(tmp_path / "runs")
    assert ">Attention</h3>" in text and "incomplete" not in text
    shift = text[text.index(">Which shift is it?</h3>") :]
    assert "Not estimated: photos: 23 images per side are left" in shift and "at least 64 are needed." in shift


def test_one_runs_own_folder_shows_its_model(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "SHIFT_IMAGES", 100)
    one = next(trained.glob("*/model.safetensors")).parent
    with pytest.raises(SystemExit) as stop:
        main(["report", str(one), "--json"])
    assert not stop.value.code and json.loads(capsys.readouterr().out)["runs"] == 1
    assert ">Attention</h3>" in (one / "report.html").read_text()
