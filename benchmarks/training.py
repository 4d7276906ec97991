"""A whole training, on the clock: from the first look at the data to the last record, evaluations included.

Two trials of one run, one after the other in one process: the first pays what is paid once (kernels are compiled,
libraries are loaded), the second does not.

    python benchmarks/training.py [--dataset ColoredMNIST] [--algorithm ERM] [--precision bf16] [--json FILE]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from domainwise import DATASETS, train
from domainwise.cli.bench.machine import describe
from domainwise.engine.devices import pick_device
from domainwise.sweeps.plan_run import plan_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dataset", default="ColoredMNIST")
    parser.add_argument("--algorithm", default="ERM")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = describe(pick_device("auto")) | {"trials": []}
    for trial in range(2):
        unseen = DATASETS[given.dataset].testable[-1]
        run = plan_run(
            given.dataset, given.algorithm, unseen, precision=given.precision, steps=given.steps, trial=trial
        )
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            outcome = train(run, folder)
            seconds = time.perf_counter() - started
        evaluations = len({record.step for record in outcome.records})
        results["trials"].append({"run": str(run), "steps": run.steps, "evaluations": evaluations, "seconds": seconds})
        print(f"{run}, {run.precision}: {run.steps} steps, {evaluations} evaluations, {seconds:.2f} s")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
