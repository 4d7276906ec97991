"""Step time on the CPU: the engine against a plain loop, side by side in one run.

The plain loop is what one writes first: a DataLoader of single samples per domain, eager, contiguous memory. Both train
the MNIST CNN with ERM on two domains of 64 images (ColoredMNIST from the embedded digits), on one thread, which is what
each run of a sweep has, and on all. Every loop has a process of its own, as it would have in use: what memory costs it
depends on what malloc has been asked for before, and by whom. They take turns, in another order every time, so that a
busy machine slows all; what counts is the ratio. Where other programs take the cores away from one of two threads, for
which the other then waits, `--busy` measures one thread alone, by the time it computes.

    python benchmarks/cpu_step.py [--steps 8] [--rounds 6] [--busy] [--json FILE]
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from domainwise import DATASETS
from domainwise.cli.bench.plain_loop import PlainLoop
from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.engine.devices import check_precision
from domainwise.engine.session import Session
from domainwise.sweeps.plan_run import plan_run

DATASET, BATCH, DOMAINS = "ColoredMNIST-embedded", 64, ("+90%", "+80%")
CPU = torch.device("cpu")
PLAIN = "plain loop, fp32"
LOOPS: dict[str, Callable[[Environments], Callable[[], None]]] = {
    PLAIN: lambda environments: PlainLoop(environments, DOMAINS, "mnist-cnn", BATCH, CPU).step,
    "domainwise, fp32": lambda environments: engine(environments, "fp32"),
    "domainwise, bf16": lambda environments: engine(environments, "bf16"),
}


def engine(environments: Environments, precision: str) -> Callable[[], None]:
    run = plan_run(DATASET, "ERM", ["-90%"], hparams={"batch_size": BATCH}, precision=precision)
    return Session(run, environments, CPU).step


def work(name: str, threads: int, steps: int, busy: bool, turns: "Connection[float, object]") -> None:
    """One loop in a process of its own: at every turn some steps, and how long each took."""
    torch.set_num_threads(threads)
    step = LOOPS[name](DATASETS[DATASET].load())
    clock = time.thread_time if busy else time.perf_counter
    with suppress(EOFError):
        while True:
            turns.recv()
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
        self.pipe.send("go")
        return float(self.pipe.recv())

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self.process.join()


def possible() -> list[str]:
    """The loops that this CPU can do."""
    try:
        check_precision("bf16", CPU)
    except UserError as error:
        print(error)
        return [name for name in LOOPS if not name.endswith("bf16")]
    return list(LOOPS)


def measure(names: Sequence[str], threads: int, given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Each loop's median seconds per step, images per second, and speed as a multiple of the plain loop's."""
    turns: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as running:
        loops = {name: running.enter_context(Loop(name, threads, given)) for name in names}
        for number in range(given.rounds + 1):
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                turns[name].append(loops[name].turn())
    medians = {name: statistics.median(own[1:]) for name, own in turns.items()}  # the first turn warms up
    return {
        name: {
            "seconds_per_step": seconds,
            "images_per_second": BATCH * len(DOMAINS) / seconds,
            "times_plain": medians[PLAIN] / seconds,
            "turns": turns[name],
        }
        for name, seconds in medians.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--busy", action="store_true", help="one thread, in CPU time: for a machine that does more")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results, names = {}, possible()
    for threads in [1] if given.busy else sorted({1, torch.get_num_threads()}):
        results[threads] = measure(names, threads, given)
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
