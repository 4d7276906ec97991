"""Where the time of a training step on a GPU goes: its time, and every kernel of it.

A specification is DATASET,NETWORK,ALGORITHM,PRECISION,BATCH,MODE with MODE eager, captured or compiled. Images of
PACS are made up if there are none: they take as long.

    python benchmarks/step_kernels.py ColoredMNIST,mnist-cnn,DAT,bf16,64,captured PACS,resnet50,ERM,bf16,32,compiled
"""

import argparse
import gc
import statistics
from collections import Counter
from dataclasses import replace
from typing import cast

import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from domainwise import DATASETS, Environments
from domainwise.cli.bench.machine import describe
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.engine.devices import now
from domainwise.engine.execution import Execution, Mode
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.session import Session
from domainwise.sweeps.plan_run import plan_run

GPU = torch.device("cuda")
ROUNDS, PROFILED = 5, 10


def images(dataset: Dataset) -> Environments:
    try:
        return dataset.load().to(GPU)
    except UserError:
        noise = torch.rand(400, 3, 28, 28, generator=torch.Generator().manual_seed(0))
        smooth = (255 * F.interpolate(noise, size=(224, 224), mode="bilinear")).to(torch.uint8)
        made_up = {domain: (smooth, torch.arange(400) % 7) for domain in dataset.domains}
        return Environments.from_arrays(made_up, name=f"{dataset.title}, made up").to(GPU)


def session_of(specification: str) -> tuple[Session, RunContext]:
    name, network, algorithm, precision, batch, mode = specification.split(",")
    dataset = DATASETS[name]
    run = plan_run(
        dataset,
        algorithm,
        dataset.testable[-1],
        network=network,
        hparams={"batch_size": int(batch)},
        precision=precision,
    )
    own = RunContext(GPU, precision)
    with own:
        session = Session(replace(run, weights=""), images(dataset), GPU, execution=Execution(cast(Mode, mode)))
    return session, own


def milliseconds(session: Session, steps: int) -> float:
    rounds = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(steps):
            session.step()
        end.record()
        end.synchronize()
        rounds.append(start.elapsed_time(end) / steps)
    return statistics.median(rounds)


def print_kernels(session: Session, most: int) -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(PROFILED):
            session.step()
        now(GPU)
    events = [event for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA]  # type: ignore[attr-defined]
    times, counts = Counter[str](), Counter(event.name for event in events)
    for event in events:
        times[event.name] += event.device_time / PROFILED
    print(f"  {sum(times.values()):.1f} us in {len(events) / PROFILED:.0f} kernels")
    for name, microseconds in times.most_common(most):
        print(f"  {microseconds:8.1f} us  {counts[name] / PROFILED:4.0f} x  {name[:140]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("specifications", nargs="+")
    parser.add_argument("--kernels", type=int, default=30, help="that take most, to be printed [default: 30]")
    given = parser.parse_args()
    print(describe(GPU))
    for specification in given.specifications:
        session, own = session_of(specification)
        with own:
            began = now(GPU)
            session.step()
            start = now(GPU) - began
            for _ in range(10):
                session.step()
            small = session.environments.images[0].numel() < 10_000
            print(f"{specification}: {milliseconds(session, 60 if small else 10):.4f} ms a step, start {start:.1f} s")
            print_kernels(session, given.kernels)
        del session, own
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
