"""The page of the server, in a real browser: drop an image, see prediction and heatmap."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import domainwise as dw
from browser import Browser, needs_chromium
from domainwise.analysis.attention import algorithm_attention
from domainwise.models.calibrate import calibrate
from domainwise.models.inputs import as_inputs
from domainwise.serving import create_app
from served import CLASSES, Client, png, served, small_data, small_model

SHOWN = "!document.getElementById('result').hidden || !document.getElementById('error').hidden"
TEXT = "document.getElementById('{}').textContent"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def model() -> dw.Model:
    return calibrate(small_model(), data=small_data(seed=1))


@pytest.fixture(scope="module")
def client(model: dw.Model) -> Iterator[Client]:
    with served(create_app(model, sets=0.9)) as client:
        yield client


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """An image of the class whose name is a script."""
    data = small_data(seed=2)
    file = tmp_path / "image.png"
    file.write_bytes(png(data.images[int((data.labels == 2).nonzero()[0])].numpy()))
    return file


def test_the_page_is_one_file_that_allows_no_other(client: Client) -> None:
    reply = client.get("/")
    text, policy = reply.body.decode(), reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy and policy.count("'sha256-") == 2 and "unsafe" not in policy
    assert "http://" not in text and "https://" not in text and "innerHTML" not in text
    assert reply.headers["x-content-type-options"] == "nosniff"


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1440, False)])
def test_a_dropped_image_shows_its_prediction(
    browser: Browser, client: Client, model: dw.Model, picture: Path, width: int, dark: bool
) -> None:
    browser.open(client.url, width=width, dark=dark)
    browser.wait("document.getElementById('about').textContent")
    assert "3 classes" in browser.evaluate(TEXT.format("about")) and "north" in browser.evaluate(TEXT.format("about"))
    browser.drop("#drop", picture)
    browser.wait(SHOWN)
    p = model.predict_proba(str(picture))[0]
    assert browser.evaluate(TEXT.format("error")) == ""
    assert browser.evaluate(TEXT.format("class")) == f"{CLASSES[2]} · {100 * p[2]:.1f} %"
    rows = browser.evaluate(
        "[...document.querySelectorAll('#bars li')].map(e => [e.innerText, e.querySelector('meter').value])"
    )
    assert len(rows) == 3 and rows[0][0].split("\n")[0] == CLASSES[2] and rows[0][1] == pytest.approx(p[2], abs=1e-6)
    assert CLASSES[2] in browser.evaluate(TEXT.format("decision"))
    assert browser.evaluate("document.querySelectorAll('b').length") == 0, "names are text"
    assert browser.evaluate("document.getElementById('picture').naturalWidth") == 16
    assert browser.complaints == [] and browser.evaluate(OVERFLOW) <= 0
    heat = browser.evaluate(
        "(c => [c.width, c.hidden, Math.max(...c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
        ".filter((_, i) => i % 4 == 3))])(document.getElementById('heat'))"
    )
    assert heat == [16, False, 255]


@needs_chromium
def test_a_bad_file_is_said_and_the_next_image_shows(
    browser: Browser, client: Client, picture: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "<img src=x onerror=alert(1)>.png"
    bad.write_text("no image")
    browser.open(client.url)
    browser.choose("#file", bad)
    browser.wait(SHOWN)
    assert "no image of a known format" in browser.evaluate(TEXT.format("error"))
    (complaint,) = browser.complaints
    assert "415" in complaint, "the browser's own note of the status"
    browser.choose("#file", picture)
    browser.wait("!document.getElementById('result').hidden")
    assert browser.evaluate("document.getElementById('error').hidden")
    browser.evaluate(
        "document.getElementById('strength').value = 0; "
        "document.getElementById('strength').dispatchEvent(new Event('input'))"
    )
    assert browser.evaluate("getComputedStyle(document.getElementById('heat')).opacity") == "0"


@needs_chromium
def test_a_model_that_abstains_and_one_without_maps(browser: Browser, model: dw.Model, picture: Path) -> None:
    with served(create_app(model, abstain="coverage=0.01")) as client:
        browser.open(client.url)
        browser.choose("#file", picture)
        browser.wait(SHOWN)
        answer = client.post(picture.read_bytes(), "/heatmap").json
        if answer["class"] is None:
            assert browser.evaluate(TEXT.format("class")) == "I don’t know"
            assert "too little to answer" in browser.evaluate(TEXT.format("decision"))
    with served(create_app(small_model(network="mlp"))) as client:
        browser.open(client.url)
        browser.choose("#file", picture)
        browser.wait(SHOWN)
        assert "no layer that puts out maps" in browser.evaluate(TEXT.format("note"))
        assert browser.evaluate("document.getElementById('heat').hidden") and browser.complaints == []


def test_a_heatmap_is_that_of_grad_cam(client: Client, model: dw.Model, picture: Path) -> None:
    answer = client.post(picture.read_bytes(), "/heatmap").json
    grey = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["heatmap"].partition(",")[2]))), float)
    x = model.preprocessing.normalise(as_inputs(str(picture), model.preprocessing))
    heat = algorithm_attention(model.algorithm, x)[1].heat[0].numpy()
    np.testing.assert_allclose(grey, 255 * heat / heat.max(), atol=0.51)
    assert answer["class"] == CLASSES[2] and answer["note"] == ""
