"""`domainwise serve`: how it starts, what it refuses to start with, and how it ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from domainwise.models.calibrate import calibrate
from domainwise.models.folder import load_model
from domainwise.serving import server as serving_server
from domainwise.serving.server import is_loopback
from served import form, png, small_data, small_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model().save(tmp_path_factory.mktemp("served") / "model")


class Running:
    """A server in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", said: str) -> None:
        self.process, self.said = process, said
        self.address = said.split("http://")[1].split()[0]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


Start = Callable[..., Running]


@contextmanager
def running(model: Path, *options: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "domainwise", "serve", str(model), "--port", "0", "--device", "cpu", *options]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}, **streams)
    assert process.stderr is not None
    try:
        said = ""
        while "Ctrl-C" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        yield Running(process, said)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_it_says_where_it_answers_logs_requests_and_finishes_those_in_flight(model: Path, number: int) -> None:
    """A request whose body has half arrived when the signal comes is answered."""
    body = form([png(np.random.default_rng(0).integers(0, 256, (3, 99, 99), dtype=np.uint8))])
    head = "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    with running(model) as server:
        assert server.said == f"{model}: http://{server.address} (Ctrl-C stops)\n"
        host, port = server.address.split(":")
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:1000])
            time.sleep(0.3)
            ended: list[int] = []
            waiting = threading.Thread(target=lambda: ended.append(server.stop(number)))
            waiting.start()
            time.sleep(0.5)
            assert not ended
            connection.sendall(body[1000:])
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        waiting.join(30)
        assert ended == [0] and server.process.stdout is not None and server.process.stderr is not None
        (line,) = server.process.stdout.read().splitlines()
        assert json.loads(line)["status"] == 200 and server.process.stderr.read() == ""


@pytest.mark.slow
def test_it_ends_well_while_drift_is_measured(model: Path) -> None:
    """A process that ended while a thread of its own computes would be aborted."""
    noise = np.random.default_rng(0).integers(0, 256, (25, 3, 16, 16), dtype=np.uint8)
    with running(model) as server:
        for _ in range(4):
            connection = http.client.HTTPConnection(server.address, timeout=60)
            headers = {"Content-Type": "multipart/form-data; boundary=x"}
            connection.request("POST", "/predict?domain=new", form([png(one) for one in noise]), headers)
            assert connection.getresponse().status == 200
            connection.close()
        assert server.stop() == 0


@pytest.mark.slow
def test_a_reader_of_the_log_that_goes_away_does_not_stop_it(model: Path) -> None:
    with running(model) as server:
        assert server.process.stdout is not None
        server.process.stdout.close()
        for _ in range(3):
            connection = http.client.HTTPConnection(server.address, timeout=30)
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
            connection.close()
        assert server.stop() == 0


def test_what_a_user_should_know_is_said_at_the_start(
    domainwise: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_app: object, _host: str, _port: int, *, started: Callable[[str], None]) -> None:
        started("http://there:1")

    monkeypatch.setattr(serving_server, "run", run)
    open_to_all = domainwise("serve", model, "--host", "0.0.0.0", "--port", "1", "--device", "cpu")
    assert open_to_all.status == 0 and "without password or encryption" in open_to_all.err
    alone = domainwise("serve", model, "--device", "cpu")
    assert alone.err == f"{model}: http://there:1 (Ctrl-C stops)\n"
    calibrated = calibrate(load_model(model, device="cpu"), data=small_data(seed=1)).save(tmp_path / "calibrated")
    strict = domainwise("serve", calibrated, "--sets", "0.9", "--device", "cpu")
    assert "thresholds were chosen on held-out images of the training domains" in strict.err


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("example.org", False), ("", False)],
)  # fmt: skip
def test_loopback_addresses_are_known(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sets", "0.9"), "this model is not calibrated"),
        (("--abstain", "risk=0.05"), "this model is not calibrated"),
        (("--host", "256.0.0.1"), "no address of this machine"),
        (("--host", "192.0.2.1"), "cannot listen at 192.0.2.1, port 8000"),
        (("--queue", "4"), "does not hold one request of 32 (--queue)"),
        (("--max-megapixels", "1e9"), "max megapixels 1e+09"),
        (("--max-images", "0"), "max images 0"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    domainwise: Command, model: Path, options: tuple[str, ...], words: str
) -> None:
    refused = domainwise("serve", model, "--device", "cpu", *options)
    assert refused.is_one_line_error and words in refused.err


def test_a_port_in_use_is_one_line(domainwise: Command, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = domainwise("serve", model, "--port", port, "--device", "cpu")
    assert refused.is_one_line_error and f"port {port} (Address already in use): give another" in refused.err


def test_a_missing_package_is_one_line(domainwise: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused = domainwise("serve", model)
    assert refused.is_one_line_error and "serving needs uvicorn: pip install 'domainwise[serve]'" in refused.err


def test_no_model_is_one_line(domainwise: Command, tmp_path: Path) -> None:
    assert domainwise("serve", tmp_path).is_one_line_error
