"""Step time on the CPU: the engine against a plain loop, side by side in one run.

The plain loop is what one writes first: a DataLoader of single samples per domain, eager, contiguous memory. Both train
the MNIST CNN with ERM on two domains of 64 images (ColoredMNIST from the embedded digits), on one thread, which is what
each run of a sweep has, and on all. Every loop has a process of its own, as it would have in use: what memory costs it
depends on what malloc has been asked for before, and by whom. They take turns, so that a busy machine slows all; what
counts is the ratio. Where other programs take the cores away from one of two threads, which the other then waits for,
`--busy` measures one thread alone, by the time it computes.

    python benchmarks/cpu_step.py [--steps 5] [--rounds 6] [--busy] [--json FILE]
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
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
PLAIN = "plain loop, fp32"
LOOPS: dict[str, Callable[[Environments], Callable[[], None]]] = {
    PLAIN: lambda environments: PlainLoop(environments, DOMAINS, "mnist-cnn", BATCH, CPU).step,
    "domainwise, fp32": lambda environments: engine(environments, "fp32"),
    "domainwise, bf16": lambda environments: engine(environments, "bf16"),
}


def engine(environments: Environments, precision: str) -> Callable[[], None]:
    run = Run.plan(DATASET, "ERM", ["-90%"], hparams={"batch_size": BATCH}, precision=precision)
    return Session(run, environments, CPU).step


def work(name: str, threads: int, steps: int, busy: bool, turns: "Connection[float, object]") -> None:
    """One loop in a process of its own: at every turn some steps, and how long each took."""
    torch.set_num_threads(threads)
    step = LOOPS[name](DATASETS.find(DATASET).load())
    clock = time.thread_time if busy else time.perf_counter
    while turns.recv():
        started = clock()
        for _ in range(steps):
            step()
        turns.send((clock() - started) / steps)


class Loop:
    """The driver's side of a loop. It ends with the `with`."""

    def __init__(self, name: str, threads: int, given: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(name, threads, given.steps, given.busy, theirs))
        self.process.start()
        theirs.close()

    def turn(self) -> float:
        """Seconds per step."""
        self.pipe.send(True)
        return float(self.pipe.recv())

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.send(False)
        self.process.join()


def possible() -> list[str]:
    """The loops that this CPU can do."""
    try:
        check_precision("bf16", CPU)
    except UserError as error:
        print(error)
        return [name for name in LOOPS if not name.endswith("bf16")]
    return list(LOOPS)


def measure(threads: int, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Each loop's median seconds per step, images per second, and speed as a multiple of the plain loop's."""
    with ExitStack() as running:
        loops = {name: running.enter_context(Loop(name, threads, given)) for name in possible()}
        rounds = [{name: loop.turn() for name, loop in loops.items()} for _ in range(given.rounds + 1)]
    medians = {name: statistics.median(turns[name] for turns in rounds[1:]) for name in loops}  # the first warms up
    return {
        name: {
            "seconds_per_step": seconds,
            "images_per_second": BATCH * len(DOMAINS) / seconds,
            "times_plain": medians[PLAIN] / seconds,
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
    results = {}
    for threads in [1] if given.busy else sorted({1, torch.get_num_threads()}):
        results[threads] = measure(threads, given)
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
