"""How long a whole search takes, from a piece of it: every draw and trial for one unseen domain, in two short lengths.

Both pieces run as a sweep does, in its workers and turns. Their difference is what steps and evaluations cost; the rest
is what starting costs, counted for every unseen domain though a sweep starts its workers once.

    python benchmarks/search.py [--dataset ColoredMNIST] [--algorithm DAT] [--draws 20] [--trials 3] [--of 10001]
        [--lengths 201 801] [--device auto] [--precision bf16] [--json FILE]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from domainwise import DATASETS
from domainwise.cli.bench.machine import describe
from domainwise.engine.devices import pick_device
from domainwise.sweeps.events import Settings
from domainwise.sweeps.local import execute
from domainwise.sweeps.plan import Plan, plan_sweep


def seconds(plan: Plan, device: str) -> tuple[int, float]:
    """How many runs the plan has, and how long they take."""
    runs = plan.runs()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        ended = [event.ended for event in execute(runs, Settings(Path(folder), device)) if event.ended is not None]
        took = time.perf_counter() - began
    assert [status.status for status in ended] == ["done"] * len(runs), "a run that fails early costs too little"
    return len(runs), took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dataset", default="ColoredMNIST")
    parser.add_argument("--algorithm", default="DAT")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--of", type=int, default=10_001, help="steps of a whole run")
    parser.add_argument("--lengths", type=int, nargs=2, default=(201, 801), help="steps of the two pieces")
    parser.add_argument("--space", default="paper")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    unseen = DATASETS[given.dataset].testable
    times = {}
    for steps in given.lengths:
        plan = plan_sweep(
            given.dataset,
            (given.algorithm,),
            draws=given.draws,
            trials=given.trials,
            space=given.space,
            test_domains=unseen[-1:],
            steps=steps,
            precision=given.precision,
        )
        runs, times[steps] = seconds(plan, given.device)
        print(f"{runs} runs of {steps} steps: {times[steps]:.1f} s", flush=True)
    (short, first), (long, second) = times.items()
    per_step = (second - first) / (long - short)
    whole = len(unseen) * (first + (given.of - short) * per_step)
    print(f"{len(unseen) * runs} runs of {given.of} steps: {whole / 60:.1f} min, {1e3 * per_step / runs:.3f} ms a step")
    if given.json:
        about = describe(pick_device(given.device)) | {"runs": runs, "seconds": times, "whole_minutes": whole / 60}
        given.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
