"""What all metrics add to an evaluation that computes accuracy and loss alone, in per cent, on this device.

Evaluations with and without metrics are measured in turns, in another order every time: on a GPU replayed as in a
training, on a CPU by the time that one thread computes. The images have groups: the worst group is measured, too.

    python benchmarks/metrics.py [--device cuda] [--rounds 7] [--cases mnist-cnn,resnet18] [--json FILE]
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from domainwise import Environments
from domainwise.cli.bench.machine import describe
from domainwise.data.catalogue import Dataset
from domainwise.engine.devices import pick_device
from domainwise.engine.evaluation import Evaluator, splits_to_evaluate
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.session import Session
from domainwise.sweeps.plan_run import plan_run

DOMAINS = 3
CPU = {
    "mlp": (28, 2, 5000),
    "mnist-cnn": (28, 10, 1000),
    "small-cnn": (64, 7, 300),
    "small-cnn of 65 classes": (64, 65, 300),
    "resnet18": (64, 7, 100),
}
GPU = {
    "mlp": (28, 2, 23_000),
    "mnist-cnn": (28, 2, 23_000),
    "small-cnn": (64, 7, 3000),
    "small-cnn of 65 classes": (64, 65, 3000),
    "resnet18": (224, 7, 2000),
    "resnet50": (224, 7, 2000),
}
"""{network: (height and width of images, classes, images of every domain)}."""
LIMIT = 10.0
"""Per cent of an evaluation that metrics may add."""


def evaluators(network: str, size: int, classes: int, images: int, device: torch.device) -> dict[bool, Evaluator]:
    """{with metrics: evaluator} of one training, all of whose splits are evaluated."""
    noise = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (DOMAINS, images, 3, size, size), generator=noise, dtype=torch.uint8)
    labels = torch.arange(images) % classes
    data = Environments.from_arrays({f"domain {e}": (pixels[e], labels) for e in range(DOMAINS)}, name="made up")
    data = replace(data, groups=torch.arange(len(data.labels)) // 25)
    options: dict[str, Any] = {"network": network, "full_curves": True, "hparams": {"batch_size": 8}}
    run = replace(plan_run(Dataset.from_environments(data), "ERM", [0], **options), weights="")  # random weights
    session = Session(run, data.to(device), device)
    splits = splits_to_evaluate(run, session.environments)
    return {
        wanted: Evaluator(session.algorithm, session.environments, splits, run.train_domains, metrics=wanted)
        for wanted in (False, True)
    }


def seconds(evaluator: Evaluator, device: torch.device) -> float:
    began = clock(device)
    evaluator()
    return clock(device) - began


def clock(device: torch.device) -> float:
    """Seconds: on a GPU after all its work, on a CPU those that this thread has computed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.thread_time()


def measure(case: str, size: int, classes: int, images: int, device: torch.device, rounds: int) -> dict[str, float]:
    """Milliseconds of an evaluation without metrics, and by how many per cent these make it longer."""
    turns: dict[bool, list[float]] = {False: [], True: []}
    with RunContext(device, "tf32" if device.type == "cuda" else "fp32"):
        both = evaluators(case.partition(" ")[0], size, classes, images, device)
        for number in range(-3, rounds):  # the first ones warm up, and record
            for wanted in (False, True) if number % 2 else (True, False):
                took = seconds(both[wanted], device)
                if number >= 0:
                    turns[wanted].append(took)
    plain, full = (statistics.median(turns[wanted]) for wanted in (False, True))
    return {"images": DOMAINS * images, "classes": classes, "ms": 1000 * plain, "added": 100 * (full / plain - 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = pick_device(given.device)
    torch.set_num_threads(1)
    known = CPU if device.type == "cpu" else GPU
    wanted = given.cases.split(",") if given.cases else tuple(known)
    results: dict[str, Any] = {"machine": describe(device), "limit": LIMIT, "cases": {}}
    print(f"{'evaluation of':24s} {'images':>8s} {'without, ms':>12s} {'metrics add':>12s}")
    for case in wanted:
        row = results["cases"][case] = measure(case, *known[case], device, given.rounds)
        print(f"{case:24s} {row['images']:8,d} {row['ms']:12.2f} {row['added']:+10.1f} %", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
