"""A server under load: many clients at once for a while, killed and restarted, and stopped, in the midst of requests.

Clients send single images, forms, base64 in JSON and bad input, one request after another. Allowed are an answer, 429
and 503; for bad input 4xx. A connection may fail only while no server runs. The memory of the server is watched.

    python benchmarks/serving.py [--clients 200] [--seconds 60] [--networks resnet18-scratch:224] [--json FILE]
"""

import argparse
import asyncio
import base64
import io
import json
import math
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import domainwise as dw

KINDS = {"image": 70, "form": 10, "json": 10, "bad": 10}
"""Of 100 requests."""
PHASES = ("load", "killed", "stopped")
IN_FORM = 4
IN_FLIGHT = 0.5
"""Seconds after which a request that was sent counts as in flight: the server must answer it before it stops."""
LONGEST = 60.0
"""Seconds until an answer is given up: an error."""


@dataclass
class Seen:
    """What the clients saw."""

    answers: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    lost: int = 0  # connections that failed while no server ran
    seconds: list[float] = field(default_factory=list)  # of answers to good requests
    images: int = 0


def picture(seed: int, width: int = 640, height: int = 480) -> bytes:
    """A JPEG of coarse noise, about as large as a photograph of that size."""
    coarse = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height)).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_model(folder: Path, network: str, image_size: int) -> Path:
    """A model of hardly trained weights: how fast it answers does not depend on them."""
    rng = np.random.default_rng(0)
    shape = (40, 3, image_size, image_size)
    domains = {
        name: (rng.integers(0, 256, shape, dtype=np.uint8), rng.integers(0, 2, 40)) for name in ("north", "south")
    }
    data = dw.Environments.from_arrays(domains, name="noise", classes=("cat", "dog"))
    dw.fit(data, "ERM", network=network, steps=2, hparams={"batch_size": 2}, device="cpu").save(folder)
    return folder


def requests(pictures: list[bytes]) -> dict[str, list[tuple[bytes, int]]]:
    """Of every kind a few complete requests, with the number of their images."""

    def post(body: bytes, kind: str, path: str = "/predict?domain=camera") -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def form(images: list[bytes]) -> bytes:
        head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n\r\n'
        return b"".join(head + image + b"\r\n" for image in images) + b"--x--\r\n"

    texts = [base64.b64encode(image).decode() for image in pictures]
    return {
        "image": [(post(one, "image/jpeg"), 1) for one in pictures],
        "form": [(post(form(pictures[:IN_FORM]), "multipart/form-data; boundary=x"), IN_FORM)],
        "json": [(post(json.dumps({"images": texts[:2]}).encode(), "application/json"), 2)],
        "bad": [
            (post(b"no image", "image/jpeg"), 0),
            (post(pictures[0][:200], "image/jpeg"), 0),
            (post(b'{"images": [', "application/json"), 0),
            (post(pictures[0], "image/jpeg", "/predict?levels=0.9"), 0),
        ],
    }


async def answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """The status of an answer, and whether the connection stays."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers.get("connection") != "close"


class Load:
    """Clients that send requests until they are told to stop."""

    def __init__(self, port: int, clients: int) -> None:
        self.port, self.clients = port, clients
        self.sent = requests([picture(seed) for seed in range(8)])
        self.down = False  # whether no server runs, and connections may fail
        self.promised = -math.inf  # requests before this time are answered, even if the server is stopped
        self.stopping = False
        self.seen = Seen()

    async def run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self.clients)))

    async def _client(self, number: int) -> None:
        luck = random.Random(number)
        stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while not self.stopping:
            kind = luck.choices(list(KINDS), list(KINDS.values()))[0]
            request, images = luck.choice(self.sent[kind])
            began = time.perf_counter()
            try:
                stream = stream or await asyncio.open_connection("127.0.0.1", self.port)
                stream[1].write(request)
                await stream[1].drain()
                status, stays = await asyncio.wait_for(answer(stream[0]), LONGEST)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                if self.down and began > self.promised:
                    self.seen.lost += 1
                else:
                    self.seen.errors.append(f"{kind}: {type(error).__name__} {error}")
                await closed(stream)
                stream = None
                await asyncio.sleep(0.5)
                continue
            self._note(self.seen, kind, status, images, time.perf_counter() - began)
            if not stays:
                await closed(stream)
                stream = None
            if status in (429, 503):
                await asyncio.sleep(luck.uniform(0.5, 1.5))  # as Retry-After asks
        await closed(stream)

    @staticmethod
    def _note(seen: Seen, kind: str, status: int, images: int, seconds: float) -> None:
        seen.answers[f"{kind} {status}"] += 1
        good = status in (429, 503) or (400 <= status < 500 if kind == "bad" else status == 200)
        if not good:
            seen.errors.append(f"{kind}: status {status}")
        elif status == 200:
            seen.seconds.append(seconds)
            seen.images += images


async def closed(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None) -> None:
    if stream is not None:
        stream[1].close()
        with suppress(OSError):
            await stream[1].wait_closed()


async def start(model: Path, port: int, *options: str) -> tuple[subprocess.Popen[str], float]:
    """A server that accepts requests, and the seconds until it did."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "domainwise", "serve", str(model), "--port", str(port), "--device", "cpu"]
    server = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    line = await asyncio.to_thread(server.stderr.readline)
    if "http://" not in line:
        raise SystemExit(f"the server did not start: {line}{server.stderr.read()}")
    return server, time.perf_counter() - began


def megabytes(process: int) -> float:
    """Resident memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def watch_memory(process: int, seconds: float) -> list[float]:
    found = []
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0:
        await asyncio.sleep(min(0.5, left))
        found.append(megabytes(process))
    return found


def summary(seen: Seen, seconds: float) -> dict[str, Any]:
    ordered = sorted(seen.seconds) or [0.0]
    places = {"median": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        "answers": dict(sorted(seen.answers.items())),
        "errors": dict(Counter(seen.errors)),
        "connections_lost_while_down": seen.lost,
        "images_per_second": round(seen.images / seconds, 1),
        "seconds": {name: round(ordered[int(q * (len(ordered) - 1))], 3) for name, q in places.items()},
    }


async def measure(model: Path, clients: int, seconds: float, *options: str) -> dict[str, Any]:
    """A phase of load, one with a killed server, one with a stopped server."""
    servers: list[subprocess.Popen[str]] = []
    try:
        return await phases(servers, model, clients, seconds, *options)
    finally:
        for server in servers:
            server.kill()


async def phases(
    servers: list[subprocess.Popen[str]], model: Path, clients: int, seconds: float, *options: str
) -> dict[str, Any]:
    """What clients saw of each phase; the servers that were started are noted in `servers`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server, startup = await start(model, port, *options)
    servers.append(server)
    load = Load(port, clients)
    running = asyncio.create_task(load.run())
    began = time.perf_counter()
    memory = await watch_memory(server.pid, seconds)
    found: dict[str, Any] = {"startup_seconds": round(startup, 1)}
    found["load"] = summary(load.seen, time.perf_counter() - began)
    quarter = max(1, len(memory) // 4)
    found["load"]["memory_megabytes"] = {
        "second quarter": round(statistics.median(memory[quarter : 2 * quarter] or memory)),
        "last quarter": round(statistics.median(memory[-quarter:])),
        "most": round(max(memory)),
    }

    load.seen, load.down = Seen(), True
    server.kill()
    server.wait()
    server, downtime = await start(model, port, *options)
    servers.append(server)
    await asyncio.sleep(1.0)  # clients that were refused try again
    load.down = False
    began = time.perf_counter()
    await asyncio.sleep(max(1.0, seconds / 4))
    found["killed"] = {"restart_seconds": round(downtime, 1)} | summary(load.seen, time.perf_counter() - began)

    load.seen, load.down = Seen(), True  # new connections are refused from now on
    began = time.perf_counter()
    load.promised = began - IN_FLIGHT
    server.send_signal(signal.SIGTERM)
    status = await asyncio.to_thread(server.wait, 60)
    load.stopping = True
    await running
    found["stopped"] = {"exit_status": status, "shutdown_seconds": round(time.perf_counter() - began, 1)}
    found["stopped"] |= summary(load.seen, time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--networks", default="resnet18-scratch:224,small-cnn:64", help="NAME:PIXELS, ...")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average_before": [round(value, 2) for value in os.getloadavg()],
        "clients": given.clients,
        "seconds": given.seconds,
        "requests": KINDS,
        "networks": {},
    }
    failed = False
    for words in given.networks.split(","):
        network, _, pixels = words.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(Path(folder), network, int(pixels))
            found = asyncio.run(measure(model, given.clients, given.seconds))
        print(json.dumps({words: found}, indent=1), flush=True)
        failed |= any(found[phase]["errors"] for phase in PHASES)
        results["networks"][words] = found
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    if failed:
        raise SystemExit("there were errors")


if __name__ == "__main__":
    main()
