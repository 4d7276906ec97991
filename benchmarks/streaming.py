"""Steps on images that stream from the host against steps on images that live on the GPU, side by side in one run.

Both train by captured steps of 3 x 32 made-up images of 224 pixels, augmented, and take turns. If streaming never makes
the GPU wait, both take as long; "waits" is how long the host waits for a batch to be gathered.

    python benchmarks/streaming.py [--networks resnet18,resnet50] [--precision bf16] [--json FILE]
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from domainwise import DATASETS, Environments
from domainwise.cli.bench.machine import describe
from domainwise.data.batches import StreamedBatches
from domainwise.engine.devices import now
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.session import Session
from domainwise.sweeps.plan_run import plan_run
from step_kernels import GPU, images, milliseconds

DATASET, BATCH, STEPS, TURNS = DATASETS["PACS"], 32, 50, 3


def session_of(network: str, precision: str, environments: Environments) -> tuple[Session, RunContext]:
    hparams = {"batch_size": BATCH}
    run = plan_run(DATASET, "ERM", DATASET.testable[-1], network=network, hparams=hparams, precision=precision)
    own = RunContext(GPU, precision)
    with own:
        session = Session(replace(run, weights=""), environments, GPU)
        for _ in range(10):
            session.step()
        now(GPU)
    return session, own


def watch_waits(session: Session) -> list[float]:
    """The milliseconds the host waits for each batch, as they come."""
    assert isinstance(session.batches, StreamedBatches)
    waits: list[float] = []
    prefetcher, get = session.batches.prefetcher, session.batches.prefetcher.get

    def watched() -> tuple[torch.Tensor, ...]:
        began = time.perf_counter()
        prefetcher.pending[0].result()
        waits.append(1000 * (time.perf_counter() - began))
        return get()

    prefetcher.get = watched  # type: ignore[method-assign]
    return waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--networks", default="resnet18,resnet50")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    resident = images(DATASET)
    streamed = replace(resident, images=resident.images.cpu(), streamed=True)
    results = describe(GPU) | {"images": resident.name, "networks": {}}
    for network in given.networks.split(","):
        sessions = {
            "resident": session_of(network, given.precision, resident),
            "streamed": session_of(network, given.precision, streamed),
        }
        waits = watch_waits(sessions["streamed"][0])
        turns: dict[str, list[float]] = {where: [] for where in sessions}
        for _ in range(TURNS):
            for where, (session, own) in sessions.items():
                with own:
                    turns[where].append(milliseconds(session, STEPS))
        found = {f"{where}_ms": statistics.median(times) for where, times in turns.items()}
        found |= {"wait_ms_median": statistics.median(waits), "wait_ms_most": max(waits)}
        results["networks"][network] = found
        print(network, ", ".join(f"{name} {value:.3f}" for name, value in found.items()), flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
