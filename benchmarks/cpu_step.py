"""Step time on the CPU: the engine against a plain loop, side by side in one run.

The plain loop is what one writes first: a DataLoader of single samples per domain, eager, contiguous memory. Both train
the MNIST CNN with ERM on two domains of 64 images (ColoredMNIST from the embedded digits), on one thread, which is what
each run of a sweep has, and on all. The loops take turns, so that a busy machine slows both; what counts is the ratio.
Where other programs take the cores away from one of two threads, which the other then waits for, `--busy` measures one
thread alone, by the time it computes.

    python benchmarks/cpu_step.py [--steps 5] [--rounds 6] [--busy] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from domainwise import DATASETS, Run
from domainwise.bench.plain import PlainLoop
from domainwise.data import Environments
from domainwise.engine.devices import check_precision
from domainwise.engine.session import Session
from domainwise.errors import UserError

DATASET, BATCH, DOMAINS = "ColoredMNIST-embedded", 64, ("+90%", "+80%")
CPU = torch.device("cpu")


def engine(environments: Environments, precision: str) -> Callable[[], None]:
    run = Run.plan(DATASET, "ERM", ["-90%"], hparams={"batch_size": BATCH}, precision=precision)
    return Session(run, environments, CPU).step


def measure(environments: Environments, threads: int, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Each loop's median seconds per step, images per second, and speed as a multiple of the plain loop's."""
    torch.set_num_threads(threads)
    loops = {
        "plain loop, fp32": PlainLoop(environments, DOMAINS, "mnist-cnn", BATCH, CPU).step,
        "domainwise, fp32": engine(environments, "fp32"),
    }
    try:
        check_precision("bf16", CPU)
        loops["domainwise, bf16"] = engine(environments, "bf16")
    except UserError as error:
        print(error)
    clock = time.thread_time if given.busy else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(given.rounds + 1):
        for name, step in loops.items():
            started = clock()
            for _ in range(given.steps):
                step()
            if turn > 0:  # the first round warms up
                times[name].append((clock() - started) / given.steps)
    medians = {name: statistics.median(values) for name, values in times.items()}
    plain = medians["plain loop, fp32"]
    return {
        name: {
            "seconds_per_step": seconds,
            "images_per_second": BATCH * len(DOMAINS) / seconds,
            "times_plain": plain / seconds,
        }
        for name, seconds in medians.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--busy", action="store_true", help="one thread, in CPU time: for a machine that does more")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    environments = DATASETS.find(DATASET).load()
    results = {}
    for threads in [1] if given.busy else sorted({1, torch.get_num_threads()}):
        results[threads] = measure(environments, threads, given)
        print(f"MNIST CNN, ERM, {len(DOMAINS)} x {BATCH} images, threads: {threads}, torch {torch.__version__}")
        for name, row in results[threads].items():
            print(
                f"{name:20s} {1000 * row['seconds_per_step']:8.1f} ms/step {row['images_per_second']:8.0f} images/s"
                f" {row['times_plain']:6.2f}x"
            )
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
