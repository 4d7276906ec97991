"""What a step of every method costs on a GPU, captured, as a multiple of ERM's, and which methods are not captured.

Every method is measured in turns with ERM at the defaults of data and network, for the median of five rounds. Steps
run captured and not compiled: compiling takes half a minute for every method. Images of PACS are made up if there are
none: they take as long. What ADA does between steps, every `min_steps` steps, is not counted; of ERM++ only the steps
that train all weights are.

    python benchmarks/captured_steps.py [--cases ColoredMNIST,mnist-cnn,64] [--methods CORAL,ARM] [--json FILE]
"""

import argparse
import gc
import json
import logging
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from domainwise import ALGORITHMS, DATASETS, Environments
from domainwise.cli.bench.machine import describe
from domainwise.core.errors import UserError
from domainwise.engine.devices import now
from domainwise.engine.execution import Execution
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.session import Session
from domainwise.sweeps.plan_run import plan_run
from step_kernels import GPU, ROUNDS, images

CASES = ("ColoredMNIST,mnist-cnn,64", "PACS,resnet50,32")
PRECISION = "bf16"
TURN_SECONDS = 0.06
"""A turn has about so many seconds, and at least two steps: DANN alternates between two kinds."""
NEVER = 10**6
TIMELESS = {"ADA": {"min_steps": NEVER}, "ERMPlusPlus": {"head_steps": 0}}
"""Hyper-parameters that leave out what is done between steps, or at first only."""


class Training:
    """One method on the data and network of a case; the first step records it."""

    def __init__(self, case: str, method: str, data: Environments) -> None:
        name, network, batch_size = case.split(",")
        dataset = DATASETS[name]
        hparams = {"batch_size": int(batch_size)} | TIMELESS.get(method, {})
        run = plan_run(dataset, method, dataset.testable[-1], network=network, hparams=hparams, precision=PRECISION)
        run = replace(run, weights="")  # random weights take as long
        self.context = RunContext(GPU, PRECISION)
        with self.context:
            self.session = Session(run, data, GPU, execution=Execution("captured"))
            self.seconds(4)
            self.steps = 2 * max(1, round(TURN_SECONDS / self.seconds(10) / 2))

    def seconds(self, steps: int) -> float:
        """Per step."""
        with self.context:
            began = now(GPU)
            for _ in range(steps):
                self.session.step()
            return (now(GPU) - began) / steps

    def turn(self) -> float:
        return self.seconds(self.steps)

    @property
    def captured(self) -> bool:
        step = self.session.captured
        return step is not None and None not in step.graphs.values()


@contextmanager
def warnings() -> Iterator[list[str]]:
    """The warnings of domainwise within it, among them the reason why a step is not captured."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("domainwise")
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


def measure(case: str, methods: Sequence[str]) -> dict[str, Any]:
    """ERM's milliseconds, and of every method its own, their ratio to ERM's beside them, and whether it is captured."""
    name, network, batch_size = case.split(",")
    data = images(DATASETS[name])
    erm = Training(case, "ERM", data)
    erm_seconds: list[float] = []
    rows: dict[str, Any] = {}
    for method in methods:
        with warnings() as found:
            try:
                row = _compare(Training(case, method, data), erm, erm_seconds)
            except (UserError, torch.OutOfMemoryError) as error:
                row = {"times_erm": None}
                found.append(str(error).splitlines()[0])
        rows[method] = row | ({"reason": "; ".join(found)} if found else {})
        print(f"{case}: {method} {rows[method]}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return {
        "dataset": data.name,
        "network": network,
        "batch_size": int(batch_size),
        "domains": len(data.domains) - 1,
        "precision": PRECISION,
        "erm_milliseconds": round(1000 * statistics.median(erm_seconds), 4),
        "methods": rows,
    }


def _compare(training: Training, erm: Training, erm_seconds: list[float]) -> dict[str, Any]:
    times, ratios = [], []
    for _ in range(ROUNDS):
        before, own, after = erm.turn(), training.turn(), erm.turn()
        times.append(own)
        ratios.append(2 * own / (before + after))
        erm_seconds += [before, after]
    return {
        "milliseconds": round(1000 * statistics.median(times), 4),
        "times_erm": round(statistics.median(ratios), 2),
        "captured": training.captured,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=CASES, help="DATASET,NETWORK,BATCH")
    parser.add_argument("--methods", default=",".join(ALGORITHMS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    record: dict[str, Any] = {"machine": describe(GPU), "cases": []}
    for case in given.cases:
        record["cases"].append(measure(case, given.methods.split(",")))
        if given.json:
            given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
