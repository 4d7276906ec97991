"""What the page shows of trained models: from real runs, and why not where something is missing."""

import base64
import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from browser import Browser, needs_chromium
from domainwise.cli import main
from domainwise.engine.train import train
from domainwise.report.page import Options, write_page
from domainwise.runs import Run

UNSEEN = ("scene1", "scene2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ERM, UAT and DAT after a few steps, two domains left out in turn, with models."""
    folder = tmp_path_factory.mktemp("trained")
    for unseen in UNSEEN:
        for algorithm in ("ERM", "UAT", "DAT"):
            run = Run.plan("BackgroundDigits", algorithm, [unseen], steps=4, hparams={"batch_size": 8})
            train(run, folder)
    return folder


@pytest.fixture(scope="module")
def whole(trained: Path) -> tuple[Path, list[str]]:
    """Its page, and what was told while it was made."""
    told: list[str] = []
    return write_page(trained, options=Options(progress=told.append))[0], told


def page(folder: Path, **options: object) -> str:
    return write_page(folder, options=Options(**options))[0].read_text()  # type: ignore[arg-type]


def test_attention_audit_and_perturbations_of_every_unseen_domain(whole: tuple[Path, list[str]]) -> None:
    text, told = whole[0].read_text(), whole[1]
    assert told == [f"asking 2 models about {unseen}" for unseen in UNSEEN], "ERM and DAT, as in the paper, not UAT"
    for heading in ("Attention", "What did it use?", "Perturbations"):
        part = text[text.index(f"<h3>{heading}</h3>") :]
        assert all(f"<summary>Unseen: {unseen}</summary>" in part for unseen in UNSEEN)
    pictures = [base64.b64decode(data) for data in re.findall(r"data:image/png;base64,([^\"]+)", text)]
    assert len(pictures) == 3 * len(UNSEEN), "heatmaps, audit and DAT's perturbations"
    assert all(Image.open(io.BytesIO(picture)).width > 300 for picture in pictures)
    assert "% of the heat on the object" in text and "Does the perturbation fit the background?" in text
    assert text.count("(unseen)") >= 4 and "background alone" in text


@needs_chromium
def test_every_picture_loads(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    browser = Browser(tmp_path / "profile")
    try:
        for width in (390, 1440):
            browser.open(whole[0], width=width)
            loaded = browser.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 100)")
            overflow = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert len(loaded) == 6 and all(loaded) and overflow == 0 and browser.complaints == []
    finally:
        browser.close()


def test_records_alone_where_models_are_not_wanted_or_not_there(trained: Path, tmp_path: Path) -> None:
    assert "<h3>Attention</h3>" not in page(trained, models=False)
    run = Run.plan("BackgroundDigits", "ERM", ["scene1"], steps=2, hparams={"batch_size": 8})
    model = train(run, tmp_path).folder / "model.safetensors"
    whole = model.read_bytes()
    model.unlink()
    assert "not shown: no model was kept with these runs" in page(tmp_path)
    model.write_bytes(whole[:100])
    assert "not shown: " in page(tmp_path) and "does not fit its run" in page(tmp_path)


def test_one_runs_own_folder_shows_its_model(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = next(trained.glob("*/model.safetensors")).parent
    with pytest.raises(SystemExit) as stop:
        main(["report", str(one), "--json"])
    assert not stop.value.code and json.loads(capsys.readouterr().out)["runs"] == 1
    assert "<h3>Attention</h3>" in (one / "report.html").read_text()
