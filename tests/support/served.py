"""An application that is served on the loopback interface, in a thread of the test, and a client for it."""

import base64
import http.client
import io
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import uvicorn
from fastapi import FastAPI
from PIL import Image

import domainwise as dw
from domainwise.serving.server import address, bind, configuration

CLASSES = ("cat", "dog", "</script><b>owl")
DOMAINS = ("north", "south")
SIZE = 16


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The code of an error, which is JSON with a sentence on one line."""
        assert self.headers["content-type"] == "application/json" and set(self.json) == {"error"}
        error = self.json["error"]
        assert set(error) == {"code", "message"} and error["message"] and "\n" not in error["message"]
        assert "Traceback" not in error["message"] and len(error["message"]) < 400
        return error["code"]


class Client:
    def __init__(self, url: str) -> None:
        self.url = url
        self.host = url.removeprefix("http://")

    def ask(self, method: str, path: str, body: bytes | None = None, kind: str | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            connection.request(method, path, body, headers | ({} if kind is None else {"Content-Type": kind}))
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def post(self, body: bytes, path: str = "/predict", kind: str | None = "image/png") -> Reply:
        return self.ask("POST", path, body, kind)

    def form(self, images: Sequence[bytes], path: str = "/predict", name: str = "{}.png") -> Reply:
        return self.post(form(images, name), path, "multipart/form-data; boundary=x")

    def json(self, content: Any, path: str = "/predict") -> Reply:
        return self.post(json.dumps(content).encode(), path, "application/json")

    def metric(self, sample: str) -> float:
        """The value of a sample, by its name and labels; 0 if there is none."""
        lines = self.get("/metrics").body.decode().splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.rsplit(" ", 1)[0] == sample), 0.0)


def form(images: Sequence[bytes], name: str = "{}.png") -> bytes:
    parts = []
    for number, image in enumerate(images):
        head = f'--x\r\nContent-Disposition: form-data; name="images"; filename="{name.format(number)}"\r\n\r\n'
        parts.append(head.encode() + image + b"\r\n")
    return b"".join(parts) + b"--x--\r\n"


def encoded(image: bytes) -> str:
    return base64.b64encode(image).decode()


def png(pixels: np.ndarray) -> bytes:
    """An image [C, H, W] as a file."""
    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def small_model(**facts: Any) -> dw.Model:
    """A model of dark, medium and bright noise."""
    data = small_data()
    settings = {"steps": 21, "hparams": {"batch_size": 16, "lr": 3e-3}, "network": "small-cnn", "device": "cpu"}
    return dw.fit(data, "ERM", **settings | facts)


def small_data(seed: int = 0, count: int = 150) -> dw.Environments:
    rng = np.random.default_rng(seed)
    domains = {}
    for number, domain in enumerate(DOMAINS):
        labels = rng.integers(0, 3, count)
        bright = 40 + 70 * labels[:, None, None, None] + 10 * number
        noise = rng.integers(0, 60, (count, 3, SIZE, SIZE))
        domains[domain] = ((bright + noise).clip(0, 255).astype(np.uint8), labels)
    return dw.Environments.from_arrays(domains, name="noise", classes=CLASSES)


@contextmanager
def served(app: FastAPI) -> Iterator[Client]:
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(configuration(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    client = Client(address(listener))
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield client
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
