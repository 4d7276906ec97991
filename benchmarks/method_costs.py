"""What a step of every method costs on one CPU thread, as a multiple of ERM's, for several networks.

Methods are measured one after the other, each in turns with ERM, by the time the thread computes: what else the machine
does hardly changes the ratio. Images and labels are made up. What ADA does between steps, every `min_steps` steps, is
not counted; of methods that begin as ERM, like RDM, and of ERM++, which begins with its classifier, only the later
steps are. With `--methods` these are added to the file. `tools/methods_page.py` makes a table of it.

    python benchmarks/method_costs.py [--networks mnist-cnn,mlp] [--methods CORAL,ARM] [--rounds 5] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from domainwise import ALGORITHMS, Environments
from domainwise.cli.bench.machine import describe
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.engine.session import Session
from domainwise.sweeps.estimate import begun
from domainwise.sweeps.plan_run import plan_run

CPU = torch.device("cpu")
DOMAINS, CLASSES, IMAGES = 3, 7, 40
TURN_SECONDS = 0.2
"""A turn has about so many seconds, and whole cycles of the methods that alternate between two kinds of steps."""


@dataclass(frozen=True)
class Case:
    """A network, the height and width of its images, and how many of every domain a batch has."""

    network: str
    size: int
    batch_size: int

    def __str__(self) -> str:
        return f"{self.network}, {self.size} px"

    def session(self, method: str) -> Session:
        noise = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (DOMAINS, IMAGES, 3, self.size, self.size), generator=noise, dtype=torch.uint8)
        labels = torch.arange(IMAGES) % CLASSES
        data = Environments.from_arrays({f"domain {e}": (images[e], labels) for e in range(DOMAINS)}, name="made up")
        hparams = {"batch_size": self.batch_size}
        run = plan_run(Dataset.from_environments(data), method, (), network=self.network, hparams=hparams)
        # random weights take as long
        return Session(replace(run, weights="", hparams=run.hparams | begun(run.hparams)), data, CPU)


CASES = (
    Case("mlp", 28, 32),
    Case("small-cnn", 28, 32),
    Case("small-cnn", 64, 32),
    Case("mnist-cnn", 28, 16),
    Case("resnet18", 112, 2),
    Case("resnet50", 112, 2),
)


def seconds(session: Session, steps: int) -> float:
    """Per step, computed by this thread."""
    began = time.thread_time()
    for _ in range(steps):
        session.step()
    return (time.thread_time() - began) / steps


def turn(session: Session) -> int:
    """The steps of a turn, after a cycle of steps that prepare those to come."""
    cycle = 1 + int(session.algorithm.hparams.get("d_steps", 1))
    return cycle * max(1, round(TURN_SECONDS / seconds(session, cycle) / cycle))


def measure(case: Case, methods: Sequence[str], rounds: int) -> dict[str, Any]:
    """ERM's seconds per step, and the step of every method as a multiple of ERM's: the median over rounds.

    None stands for a method that cannot train the network.
    """
    erm = case.session("ERM")
    seconds(erm, 1)
    steps = turn(erm)
    rounds = rounds if steps > 2 else 1  # so few steps are long enough to be measured once
    times_erm: dict[str, float | None] = {}
    erm_seconds = []
    for method in methods:
        try:
            session = case.session(method)
        except UserError as error:
            times_erm[method] = None
            print(f"{case!s:18} {method:12} {error}", flush=True)
            continue
        own_steps, ratios = turn(session), []
        for _ in range(rounds):
            before, own, after = seconds(erm, steps), seconds(session, own_steps), seconds(erm, steps)
            ratios.append(2 * own / (before + after))
            erm_seconds += [before, after]
        ratio = times_erm[method] = round(statistics.median(ratios), 2)
        print(f"{case!s:18} {method:12} {ratio:7.2f}", flush=True)
    return {
        "network": case.network,
        "size": case.size,
        "images": DOMAINS * case.batch_size,
        "erm_seconds": round(statistics.median(erm_seconds), 4),
        "times_erm": times_erm,
    }


def added(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """A record with the methods of another; ERM's seconds stay those of the first."""
    cases = {(case["network"], case["size"]): case for case in known["cases"]}
    for case in found["cases"]:
        before = cases.get((case["network"], case["size"]), case)
        ratios = before["times_erm"] | case["times_erm"]
        ordered = {name: ratios[name] for name in ALGORITHMS if name in ratios}
        cases[case["network"], case["size"]] = before | {"times_erm": ordered}
    dates = dict.fromkeys([*known["machine"]["date"].split(" and "), found["machine"]["date"]])
    return found | {"machine": found["machine"] | {"date": " and ".join(dates)}, "cases": list(cases.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(dict.fromkeys(case.network for case in CASES)))
    parser.add_argument("--methods", default="", help="by default all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases = [case for case in CASES if case.network in given.networks.split(",")]
    methods = given.methods.split(",") if given.methods else list(ALGORITHMS)
    measured = [measure(case, methods, given.rounds) for case in cases]
    record = {"machine": describe(CPU), "domains": DOMAINS, "cases": measured}
    if given.json:
        if given.methods and given.json.exists():
            record = added(json.loads(given.json.read_text()), record)
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
