"""Step time on the CPU: the engine against a plain loop, side by side in one run.

The plain loop is what one writes first: a DataLoader of single samples per domain, eager, contiguous memory. Both train
the MNIST CNN with ERM on two domains of 64 images (ColoredMNIST from the embedded digits). The loops take turns, so
that a busy machine slows both; what counts is the ratio.

    python benchmarks/cpu_step.py [--steps 10] [--rounds 5] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from domainwise import DATASETS, Run
from domainwise.data import Environments
from domainwise.engine.devices import check_precision
from domainwise.engine.session import Session
from domainwise.errors import UserError
from domainwise.nets import build

DATASET, BATCH, DOMAINS = "ColoredMNIST-embedded", 64, ("+90%", "+80%")


def plain_loop(environments: Environments) -> Callable[[], None]:
    network = build("mnist-cnn", environments.shape, len(environments.classes))
    network.represent = lambda x: network.features(x)  # type: ignore[method-assign]  # no channels_last
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    loaders: list[Iterator[list[torch.Tensor]]] = []
    for domain in DOMAINS:
        rows = environments.split(domain, 0)["in"]
        data = TensorDataset(environments.images[rows] / 255, environments.labels[rows])
        sampler = RandomSampler(data, replacement=True, num_samples=10**6)
        loaders.append(iter(DataLoader(data, batch_size=BATCH, sampler=sampler)))

    def step() -> None:
        batches = [next(loader) for loader in loaders]
        x, y = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def engine(environments: Environments, precision: str) -> Callable[[], None]:
    run = Run.plan(DATASET, "ERM", ["-90%"], hparams={"batch_size": BATCH}, precision=precision)
    return Session(run, environments, torch.device("cpu")).step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    environments = DATASETS.find(DATASET).load()
    loops = {"plain loop, fp32": plain_loop(environments), "domainwise, fp32": engine(environments, "fp32")}
    try:
        check_precision("bf16", torch.device("cpu"))
        loops["domainwise, bf16"] = engine(environments, "bf16")
    except UserError as error:
        print(error)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for (name, step), turn in zip(cycle(loops.items()), range(len(loops) * (arguments.rounds + 1)), strict=False):
        started = time.perf_counter()
        for _ in range(arguments.steps):
            step()
        if turn >= len(loops):  # the first round warms up
            times[name].append((time.perf_counter() - started) / arguments.steps)
    plain = statistics.median(times["plain loop, fp32"])
    results = {
        name: {
            "seconds_per_step": statistics.median(values),
            "images_per_second": BATCH * len(DOMAINS) / statistics.median(values),
            "times_plain": plain / statistics.median(values),
        }
        for name, values in times.items()
    }
    print(
        f"MNIST CNN, ERM, {len(DOMAINS)} x {BATCH} images, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    for name, row in results.items():
        print(
            f"{name:20s} {1000 * row['seconds_per_step']:8.1f} ms/step {row['images_per_second']:8.0f} images/s"
            f" {row['times_plain']:6.2f}x"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
