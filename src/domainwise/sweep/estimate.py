"""How long a sweep will take, from a few real steps of each of its algorithms."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from domainwise.data.find import find_dataset
from domainwise.engine.devices import pick_device
from domainwise.engine.evaluation import judge, parts_to_judge
from domainwise.engine.session import Session
from domainwise.protocol.runs import Run

STEPS = 3
ENOUGH = 1.0
"""Seconds from which a CPU's first step is measure enough; a GPU's prepares the others."""
JUDGED = 100
"""Images of each split that are judged; a whole evaluation costs in proportion."""
FEW, LARGE = 2, 64
"""Images per domain and of each split that are tried first of those with more pixels a side, of which a CPU may take
minutes for a batch."""


def estimate_seconds(runs: Sequence[Run], device: str, data_root: Path | None) -> float:
    """The sum over all runs of one thread's (or one GPU's) time.

    Each algorithm is timed once, at the smallest batch it will meet, or less where that takes long; steps are taken to
    cost in proportion to their batch, which is true of a busy device.
    """
    place = pick_device(device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        costs: dict[tuple[str, str, str], tuple[float, float]] = {}
        total = 0.0
        for run in sorted(runs, key=lambda run: int(run.hparams["batch_size"] or 1)):
            key = (run.dataset, run.algorithm, run.network)
            if key not in costs:
                costs[key] = _measure(run, place, data_root)
            per_image, per_evaluation = costs[key]
            evaluations = len(range(0, run.steps, run.evaluate_every)) + 1
            total += run.steps * per_image * int(run.hparams["batch_size"] or 1) + evaluations * per_evaluation
        return total
    finally:
        torch.set_num_threads(threads)


def _measure(run: Run, place: torch.device, data_root: Path | None) -> tuple[float, float]:
    """Seconds per image of a batch, and per evaluation."""
    data = find_dataset(run.dataset).load(data_root, run.image_size)
    on_cpu, whole = place.type == "cpu", int(run.hparams["batch_size"] or 1)
    sizes = [FEW, whole] if on_cpu and run.image_size > LARGE and whole > FEW else [whole]
    with torch.random.fork_rng():
        for batch in sizes:
            hparams = run.hparams | {"batch_size": batch}
            # random weights take as long
            session = Session(replace(run, hparams=hparams, weights="", steps=STEPS), data, place)
            step = _timed(session, 1, place)
            if on_cpu and step >= ENOUGH:
                break
            step = _timed(session, STEPS, place)
        parts = parts_to_judge(run, session.environments)
        sample = {part: rows[: JUDGED if batch == whole else FEW] for part, rows in parts.items()}
        began = _now(place)
        judge(session.algorithm, session.environments, sample, run.train_domains)
        share = sum(map(len, sample.values())) / sum(map(len, parts.values()))
        return step / batch, (_now(place) - began) / share


def _timed(session: Session, steps: int, place: torch.device) -> float:
    """Seconds per step."""
    began = _now(place)
    for _ in range(steps):
        session.step()
    return (_now(place) - began) / steps


def _now(place: torch.device) -> float:
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    return time.perf_counter()
