"""What averaging weights adds to a step of ERM, in per cent, on this device.

Each step is measured in turns without an average and with each, in another order every time, so that a busy machine
slows all alike: on a GPU captured as in a training, on a CPU by the time that one thread computes.

    python benchmarks/averaging.py [--device cuda] [--rounds 9] [--networks mnist-cnn,resnet18] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from domainwise import Environments
from domainwise.cli.bench.machine import describe
from domainwise.data.catalogue import Dataset
from domainwise.engine.devices import pick_device
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.session import Session
from domainwise.protocol.averages import AVERAGES
from domainwise.sweeps.plan_run import plan_run

DOMAINS, CLASSES, IMAGES = 3, 7, 64
CASES = {"mlp": (28, 64), "mnist-cnn": (28, 64), "small-cnn": (64, 32), "resnet18": (112, 8), "resnet50": (224, 32)}
"""{network: (height and width of images, images of every domain in a batch)}."""
ON_A_CPU = ("mlp", "mnist-cnn", "small-cnn", "resnet18")
TURN_SECONDS = 0.5
LIMIT = 5.0
"""Per cent of a step that averaging may cost on a GPU."""


def session(network: str, average: str, device: torch.device, precision: str) -> Session:
    size, batch_size = CASES[network]
    noise = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (DOMAINS, IMAGES, 3, size, size), generator=noise, dtype=torch.uint8)
    labels = torch.arange(IMAGES) % CLASSES
    data = Environments.from_arrays({f"domain {e}": (images[e], labels) for e in range(DOMAINS)}, name="made up")
    options: dict[str, Any] = {"hparams": {"batch_size": batch_size}, "network": network, "average": average}
    run = plan_run(Dataset.from_environments(data), "ERM", (), precision=precision, **options)
    return Session(replace(run, weights=""), data.to(device), device)  # random weights take as long


def clock(device: torch.device) -> float:
    """Seconds: on a GPU after all its work, on a CPU those that this thread has computed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.thread_time()


def seconds_per_step(step: Callable[[], None], steps: int, device: torch.device) -> float:
    began = clock(device)
    for _ in range(steps):
        step()
    return (clock(device) - began) / steps


def measure(network: str, device: torch.device, rounds: int) -> dict[str, float]:
    """Milliseconds of ERM's step without average, and by how many per cent each average makes it longer."""
    precision = "tf32" if device.type == "cuda" else "fp32"
    names = ("", *AVERAGES)
    turns: dict[str, list[float]] = {name: [] for name in names}
    with RunContext(device, precision):
        steps = {name: session(network, name, device, precision).step for name in names}
        first = max(seconds_per_step(step, 3, device) for step in steps.values())  # warms up, and records
        first = min(first, seconds_per_step(steps[""], 3, device))
        count = max(2, round(TURN_SECONDS / max(first, 1e-5)))
        for number in range(rounds):
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                turns[name].append(seconds_per_step(steps[name], count, device))
    medians = {name: statistics.median(times) for name, times in turns.items()}
    added = {name: 100 * (medians[name] / medians[""] - 1) for name in AVERAGES}
    return {"ms": 1000 * medians[""], **added}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--networks", default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = pick_device(given.device)
    torch.set_num_threads(1)
    wanted = given.networks.split(",") if given.networks else ON_A_CPU if device.type == "cpu" else tuple(CASES)
    results: dict[str, Any] = {"machine": describe(device), "limit": LIMIT, "networks": {}}
    print(f"{'network':12s} {'ERM, ms':>10s} " + " ".join(f"{'+' + name:>9s}" for name in AVERAGES))
    for network in wanted:
        row = results["networks"][network] = measure(network, device, given.rounds)
        print(f"{network:12s} {row['ms']:10.2f} " + " ".join(f"{row[name]:+7.1f} %" for name in AVERAGES), flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
