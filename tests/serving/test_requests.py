"""What the server answers: predictions equal to the model's, and a clear refusal of everything else."""

import http.client
import io
import json
import socket
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

import domainwise as dw
from domainwise.core.errors import UserError
from domainwise.data.images import decode
from domainwise.models.calibrate import calibrate
from domainwise.serving import Limits, create_app
from domainwise.serving.bodies import Bodies
from served import CLASSES, SIZE, Client, encoded, form, png, served, small_data, small_model

SMALL = Limits(max_megabytes=0.05, max_megapixels=0.1, max_images=3, request_megabytes=0.1, read_seconds=2)


@pytest.fixture(scope="module")
def model() -> dw.Model:
    return calibrate(small_model(), data=small_data(seed=1))


@pytest.fixture(scope="module")
def client(model: dw.Model) -> Iterator[Client]:
    with served(create_app(model, limits=SMALL)) as client:
        yield client


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return small_data(seed=2).images[:3].numpy()


def probabilities(answer: dict[str, Any]) -> list[float]:
    return [answer["probabilities"][name] for name in CLASSES]


def test_predictions_are_those_of_the_model_however_images_are_sent(
    client: Client, model: dw.Model, images: np.ndarray
) -> None:
    expected, files = model.predict_proba(images), [png(one) for one in images]
    alone = [client.post(one, kind=kind) for one, kind in zip(files, ("image/png", None, "text/x"), strict=True)]
    several = {
        "form": client.form(files),
        "json": client.json({"images": [encoded(one) for one in files]}),
        "data url": client.json({"images": ["data:image/png;base64," + encoded(one) for one in files]}),
    }
    assert [reply.status for reply in (*alone, *several.values())] == [200] * 6
    together = [answer for reply in alone for answer in reply.json["predictions"]]
    for answers in (together, *(reply.json["predictions"] for reply in several.values())):
        np.testing.assert_allclose([probabilities(one) for one in answers], expected, atol=1e-6)
        assert [one["class"] for one in answers] == list(model.predict(images))
    assert [one["file"] for one in several["form"].json["predictions"]] == ["0.png", "1.png", "2.png"]
    (single,) = client.json({"image": encoded(files[0])}).json["predictions"]
    assert set(single) == {"class", "confidence", "probabilities"}
    assert single["confidence"] == max(probabilities(single))


def test_a_large_photograph_is_read_as_predict_reads_it(client: Client, model: dw.Model) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    file = io.BytesIO()
    picture.save(file, "JPEG", exif=exif)
    (answer,) = client.post(file.getvalue()).json["predictions"]
    turned = Image.open(file)
    np.testing.assert_allclose(probabilities(answer), model.predict_proba(turned)[0], atol=1e-6)


def test_abstention_and_sets_are_those_of_the_model(client: Client, model: dw.Model, images: np.ndarray) -> None:
    files = [png(one) for one in images]
    answers = client.form(files, "/predict?abstain=coverage=0.3&sets=0.99").json["predictions"]
    assert [one["class"] for one in answers] == list(model.predict(images, abstain="coverage=0.3"))
    assert [tuple(one["set"]) for one in answers] == model.predict_sets(images, 0.99)
    with served(create_app(model, abstain="coverage=0.3", sets=0.99)) as strict:
        assert strict.form(files).json == {"predictions": answers}
        own = strict.form(files, "/predict?abstain=none&sets=none").json["predictions"]
        assert [one["class"] for one in own] == list(model.predict(images)) and "set" not in own[0]
        assert strict.metric("domainwise_abstentions_total") == sum(one["class"] is None for one in answers)


def test_a_model_without_calibration_does_not_abstain(images: np.ndarray) -> None:
    model = small_model()
    with pytest.raises(UserError, match="not calibrated"):
        create_app(model, abstain="risk=0.05")
    with served(create_app(model)) as client:
        reply = client.post(png(images[0]), "/predict?sets=0.9")
        assert (reply.status, reply.error) == (400, "bad_option") and "not calibrated" in reply.json["error"]["message"]


def bomb(width: int = 60_000, height: int = 60_000) -> bytes:
    """A PNG whose header names a size, and whose pixels are not there."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def other_format(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, kind)
    return file.getvalue()


GOOD = png(np.zeros((3, SIZE, SIZE), np.uint8))
NOISE = png(np.random.default_rng(0).integers(0, 256, (3, 40, 40), dtype=np.uint8))
FORM = "multipart/form-data; boundary=x"
JSON = "application/json"
BAD: dict[str, tuple[bytes, str | None, int, str]] = {
    "nothing": (b"", None, 400, "bad_image"),
    "text": (b"hello", "text/plain", 415, "no_image"),
    "half a png": (NOISE[: len(NOISE) // 2], "image/png", 400, "bad_image"),
    "a header alone": (GOOD[:20], "image/png", 400, "bad_image"),
    "a bomb": (bomb(), "image/png", 413, "too_many_pixels"),
    "too many pixels": (bomb(400, 251), "image/png", 413, "too_many_pixels"),
    "a width of 0": (bomb(0, 5), "image/png", 415, "no_image"),
    "no pixels": (bomb(20, 20), "image/png", 400, "bad_image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF", None, 415, "no_image"),
    "an icon": (other_format("ICO"), None, 415, "no_image"),
    "too many bytes": (bytes(60_000), "image/png", 413, "too_large"),
    "too large a request": (bytes(200_000), "image/png", 413, "too_large"),
    "an empty form": (b"--x--\r\n", FORM, 400, "no_images"),
    "a form that is none": (b"hello", FORM, 400, "bad_form"),
    "half a form": (form([GOOD])[:-30], FORM, 400, "no_images"),
    "no boundary": (form([GOOD]), "multipart/form-data", 400, "bad_form"),
    "another boundary": (form([GOOD]), "multipart/form-data; boundary=y", 400, "bad_form"),
    "a field": (b'--x\r\nContent-Disposition: form-data; name="sets"\r\n\r\n0.9\r\n--x--\r\n', FORM, 400, "bad_form"),
    "a part without a name": (b"--x\r\nContent-Type: a\r\n\r\n0.9\r\n--x--\r\n", FORM, 400, "bad_form"),
    "many files": (form([GOOD] * 4), FORM, 413, "too_many_images"),
    "very many files": (form([b""] * 200), FORM, 413, "too_many_images"),
    "one bad file": (form([GOOD, b"x"]), FORM, 415, "no_image"),
    "an empty file": (form([GOOD, b""]), FORM, 400, "bad_image"),
    "no json": (b"{", JSON, 400, "bad_json"),
    "json that is no text": (b"\xff\xfe\x00", JSON, 400, "bad_json"),
    "deep json": (b"[" * 50_000, JSON, 400, "bad_json"),
    "a long number": (b'{"images": ' + b"9" * 5000 + b"}", JSON, 400, "bad_json"),
    "a list": (b"[]", JSON, 400, "bad_json"),
    "null": (b"null", JSON, 400, "bad_json"),
    "no key": (b"{}", JSON, 400, "bad_json"),
    "another key": (b'{"files": []}', JSON, 400, "bad_json"),
    "two keys": (b'{"images": ["YQ=="], "sets": 0.9}', JSON, 400, "bad_json"),
    "numbers": (b'{"images": [1]}', JSON, 400, "bad_json"),
    "no images": (b'{"images": []}', JSON, 400, "no_images"),
    "no base64": (b'{"image": "a cat"}', JSON, 400, "bad_base64"),
    "accents": ('{"image": "äöü"}'.encode(), JSON, 400, "bad_base64"),
    "base64 of text": (b'{"image": "aGVsbG8="}', JSON, 415, "no_image"),
    "an empty image": (b'{"image": ""}', JSON, 400, "bad_image"),
    "too much base64": (json.dumps({"image": "A" * 80_000}).encode(), JSON, 413, "too_large"),
    "many images": (json.dumps({"images": ["AAAA"] * 4}).encode(), JSON, 413, "too_many_images"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_a_clear_error(client: Client, what: str) -> None:
    body, kind, status, code = BAD[what]
    reply = client.post(body, kind=kind)
    assert (reply.status, reply.error) == (status, code)


def test_a_heatmap_is_of_one_image(client: Client) -> None:
    assert client.form([GOOD, GOOD], "/heatmap").error == "too_many_images"
    assert client.post(b"hello", "/heatmap").error == "no_image"


OPTIONS = ("abstain=0.9", "abstain=risk=2", "abstain=magic=0.5", "sets=0", "sets=x", "sets=nan", "set=0.9", "%00=1")


@pytest.mark.parametrize("option", [*OPTIONS, "abstain=" + "9" * 5000, "sets=%ff%00"])
def test_a_bad_option_is_a_clear_error(client: Client, option: str) -> None:
    reply = client.post(GOOD, f"/predict?{option}")
    assert (reply.status, reply.error) == (400, "bad_option")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/predict", 405), ("POST", "/health", 405), ("DELETE", "/predict", 405), ("GET", "/docs", 404)],
)
def test_other_paths_and_methods_are_refused(client: Client, method: str, path: str, status: int) -> None:
    reply = client.ask(method, path)
    assert reply.status == status and reply.error in ("method", "no_such_path")


def test_a_refusal_names_the_image(client: Client) -> None:
    message = client.form([GOOD, b"x"], name="<b>{}\t").json["error"]["message"]
    assert message.startswith("image 2 (<b>1\t) is no image of a known format")


def test_a_bomb_is_refused_before_it_is_decoded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(decode, "read", read)
    for size in ((60_000, 60_000), (400, 251)):
        assert client.post(bomb(*size)).status == 413
    assert client.post(GOOD).status == 500, "what is small enough would be decoded"


def test_a_failure_is_an_answer_without_its_reason(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dw.Model, "probabilities", lambda *_: 1 / 0)
    reply = client.post(GOOD)
    assert (reply.status, reply.error) == (500, "internal") and "zero" not in reply.body.decode()
    assert reply.headers["x-request-id"] in reply.json["error"]["message"]
    monkeypatch.undo()
    assert client.post(GOOD).status == 200 and client.get("/health").json["status"] == "ok"


def test_a_large_body_is_refused_by_its_length_or_where_it_ends(client: Client) -> None:
    with socket.create_connection(client.host.split(":"), 10) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")
    connection = http.client.HTTPConnection(client.host, timeout=30)
    connection.request("POST", "/predict", (bytes(9000) for _ in range(20)), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_slow_body_is_given_up(client: Client) -> None:
    with socket.create_connection(client.host.split(":"), 10) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_the_room_for_bodies_is_given_back(client: Client, model: dw.Model) -> None:
    app = create_app(model, limits=SMALL)
    bodies: Bodies = app.state.service.bodies
    with served(app) as own:
        for body, kind, *_ in BAD.values():
            own.post(body, kind=kind)
        with socket.create_connection(own.host.split(":"), 10) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        own.post(GOOD)
    assert bodies.pending == 0 and app.state.service.worker.taken == 0
    bodies.pending = SMALL.pending_bytes
    with served(app) as own:
        reply = own.post(GOOD)
        assert (reply.status, reply.error, reply.headers["retry-after"]) == (503, "busy", "1")


def test_health_names_the_model_and_the_limits(client: Client, model: dw.Model) -> None:
    facts = client.get("/health").json
    assert facts["status"] == "ok" and facts["classes"] == list(CLASSES) and facts["calibrated"]
    assert facts["limits"]["max_images"] == 3 and facts["drift"] == "measured"
    assert facts["calibration"] == model.calibration


def test_openapi_describes_the_paths_without_a_page_from_elsewhere(client: Client) -> None:
    described = client.get("/openapi.json").json["paths"]
    assert set(described) == {"/predict", "/heatmap", "/health", "/metrics"}
    assert set(described["/predict"]["post"]["requestBody"]["content"]) == {FORM.split(";")[0], JSON, "image/*"}


def test_names_that_are_not_unicode_are_answered() -> None:
    """A class has the name of a folder, which may be any bytes."""
    data = small_data()
    named = {name: (data.images[data.rows(name)], data.labels[data.rows(name)]) for name in data.domains}
    odd = dw.Environments.from_arrays(named, name="odd", classes=("a", "b", "caf\udce9"))
    with served(create_app(dw.fit(odd, "ERM", steps=2, hparams={"batch_size": 4}, device="cpu"))) as client:
        assert set(client.post(GOOD).json["predictions"][0]["probabilities"]) == {"a", "b", "caf\udce9"}
        assert client.get("/health").json["classes"][2] == "caf\udce9" and client.get("/metrics").status == 200


def test_models_that_read_no_image_files_are_not_served() -> None:
    rows = {name: (np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 2) for name in "ab"}
    table = dw.Environments.from_arrays(rows, name="t", classes=("x", "y"))
    with pytest.raises(UserError, match="rows of 4 numbers"):
        create_app(dw.fit(table, "ERM", steps=2, hparams={"batch_size": 4}, device="cpu"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_megabytes": 0}, "max megabytes 0: give a number above 0"),
        ({"max_megapixels": 500}, "no image of more than 178"),
        ({"queue": 8}, "a queue of 8 images does not hold one request of 32"),
        ({"batch_size": float("nan")}, "batch size nan"),
    ],
)
def test_limits_that_make_no_sense_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        Limits(**values)
    assert error.value.argument == next(iter(values))
