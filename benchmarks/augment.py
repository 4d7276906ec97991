"""Augmentation in batches, beside a DataLoader with Pillow transforms and a ResNet-18 training step, in one run.

Batches like those of PACS: 3 domains x 32 images of 224 pixels, DomainBed's augmentation. All take turns, so that a
busy machine slows all; what counts is the ratio. The DataLoader gets its images decoded, as ours does, and a worker for
each thread that ours has; batches that it made during the others' turns are not counted. On a GPU all is captured and
compiled, as in a training, and augmentation is timed in three forms: as it is used, which is by kernels of our own
where there is Triton; in plain PyTorch; and compiled. Also the time the host needs to ask for a step with a fresh
batch: while that is shorter than the step itself, the device never waits.

    python benchmarks/augment.py [--device cpu|cuda] [--precision fp32|bf16] [--batch 32] [--rounds 3] [--json FILE]
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

import domainwise as dw
from domainwise import kernels
from domainwise.cli.bench.machine import describe
from domainwise.data.augment import Augmenter
from domainwise.data.augmentations import AUGMENTATIONS
from domainwise.data.catalogue import Dataset as Described
from domainwise.engine.execution.capture import CapturedStep, record
from domainwise.engine.execution.compilation import compiled
from domainwise.engine.session import Session

DOMAINS, SIZE, IMAGES = 3, 224, 64
AUGMENTATION = "augmented batch"
GIVEN, FRESH = "ResNet-18 training step, batch given", "ResNet-18 training step, fresh batch"
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def pictures() -> dw.Environments:
    """Smooth random colours, as many domains as are trained on and one unseen."""
    rng, arrays = np.random.default_rng(0), {}
    for domain in range(DOMAINS + 1):
        coarse = [Image.fromarray(rng.integers(0, 256, (14, 14, 3), np.uint8)) for _ in range(IMAGES)]
        images = np.stack([np.array(c.resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for c in coarse])
        arrays[str(domain)] = (images.transpose(0, 3, 1, 2), np.arange(IMAGES) % 7)
    return dw.Environments.from_arrays(arrays, name="pictures", mean=MEAN, std=STD)


class PillowDataset(Dataset[Tensor]):
    """One image at a time through Pillow, with the parameters our augmentation draws."""

    def __init__(self, environments: dw.Environments) -> None:
        settings = AUGMENTATIONS["domainbed"]
        assert settings is not None
        self.images = environments.images.permute(0, 2, 3, 1).contiguous().numpy()
        self.augmenter = Augmenter(settings, environments, torch.Generator())
        self.mean, self.std = environments.mean, environments.std

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> Tensor:
        p = self.augmenter.parameters(self.augmenter.draw(1))
        top, left, height, width = p.boxes[0].tolist()
        image = Image.fromarray(self.images[row])
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
        if p.flips[0]:
            image = ImageOps.mirror(image)
        before = p.counts[0].item()
        for weights in p.early[0, :before].tolist():
            image = blended(image, *weights)
        image = turned(image, p.turns[0].item())
        for weights in p.late[0, before:3].tolist():
            image = blended(image, *weights)
        if p.late[0, 3, 1]:
            image = ImageOps.grayscale(image).convert("RGB")
        x = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
        return (x - self.mean) / self.std


def blended(image: Image.Image, factor: float, grey: float, mean: float) -> Image.Image:
    kind = ImageEnhance.Color if grey else ImageEnhance.Contrast if mean else ImageEnhance.Brightness
    return kind(image).enhance(factor)


def turned(image: Image.Image, turn: float) -> Image.Image:
    h, s, v = image.convert("HSV").split()
    hue = np.array(h) + np.uint8(round(255 * turn) % 256)
    return Image.merge("HSV", (Image.fromarray(hue), s, v)).convert("RGB")


def pillow_batch(environments: dw.Environments, batch: int, workers: int) -> Callable[[], float]:
    """Seconds per batch of a loader that works without a pause."""
    data = PillowDataset(environments)
    sampler = RandomSampler(data, replacement=True, num_samples=10**7)
    batches = iter(DataLoader(data, DOMAINS * batch, sampler=sampler, num_workers=workers, prefetch_factor=1))

    def seconds() -> float:
        for _ in range(workers):
            next(batches)
        started = time.perf_counter()
        for _ in range(workers):
            next(batches)
        taken = time.perf_counter() - started
        time.sleep(3 * taken)  # until its workers have filled their queues and rest
        return taken / workers

    return seconds


def median_times(jobs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of what each job says it took, all taking turns; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            seconds = job()
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def timed(job: Callable[[], object], finish: Callable[[], object], times: int = 1) -> Callable[[], float]:
    def seconds() -> float:
        finish()
        started = time.perf_counter()
        for _ in range(times):
            job()
        finish()
        return (time.perf_counter() - started) / times

    return seconds


def jobs_on_the_host(session: Session) -> dict[str, Callable[[], object]]:
    x, y = session.batches.draw()
    return {
        AUGMENTATION: session.batches.draw,
        GIVEN: lambda: session.algorithm.step(x, y),
        FRESH: session.step,
    }


def jobs_on_a_gpu(session: Session) -> dict[str, Callable[[], object]]:
    """The same, recorded, and the augmentation in its other forms."""
    augmenter, algorithm = session.batches.prepare, session.algorithm
    assert isinstance(augmenter, Augmenter)
    x, y = session.batches.draw()

    def draw() -> None:
        session.batches.draw()

    def learn() -> None:
        algorithm.step(x, y)

    def graph(*, compile: bool) -> Callable[[], object]:
        with compiled(algorithm, augmenter) if compile else nullcontext():
            return record(draw, generators=[session.batches.generator, session.augmentation]).replay

    jobs = {AUGMENTATION: graph(compile=True)}
    with kernels.disabled():
        jobs |= {f"{AUGMENTATION}, plain": graph(compile=False), f"{AUGMENTATION}, compiled": graph(compile=True)}
    return jobs | {
        GIVEN: partial(CapturedStep(algorithm, compile=True), learn),
        FRESH: session.step,
    }


def host_seconds(step: Callable[[], object], finish: Callable[[], object], steps: int = 20) -> float:
    """How long the host takes to ask for a step, without waiting for the device."""
    finish()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    asked = time.perf_counter() - started
    finish()
    return asked / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    workers = (os.cpu_count() or 1) if device.type == "cuda" else torch.get_num_threads()
    finish: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    environments = pictures()
    facts = {"scale": "image", "network": "resnet18-scratch", "augmentation": "domainbed", "steps": 10**6}
    run = dw.plan(
        Described.from_environments(environments, **facts),
        "ERM",
        [str(DOMAINS)],
        hparams={"batch_size": arguments.batch},
        precision=arguments.precision,
    )
    session = Session(run, environments, device)
    made, times = (jobs_on_a_gpu(session), 20) if device.type == "cuda" else (jobs_on_the_host(session), 1)
    name = f"batch of a DataLoader with Pillow, {workers} workers"
    jobs = {label: timed(job, finish, times) for label, job in made.items()}
    jobs[name] = pillow_batch(environments, arguments.batch, workers)
    seconds = median_times(jobs, arguments.rounds)
    step, ours = seconds[GIVEN], seconds[AUGMENTATION]
    result: dict[str, Any] = {
        **describe(device),
        "images": DOMAINS * arguments.batch,
        "precision": arguments.precision,
        "rounds": arguments.rounds,
        "seconds": seconds,
        "augmentation_of_a_step": ours / step,
        "times_faster_than_pillow": seconds[name] / ours,
    }
    if device.type == "cuda":
        result["seconds"]["the host asks for a step"] = host_seconds(session.step, finish)
    print(f"{DOMAINS} x {arguments.batch} images of {SIZE} pixels, {arguments.precision}, {result['device']}")
    for label, value in result["seconds"].items():
        print(f"{label:45s} {1000 * value:10.2f} ms")
    print(f"augmentation takes 1 / {step / ours:.1f} of a training step", end=", ")
    print(f"a batch of Pillow's {seconds[name] / ours:.1f} times as long as ours")
    if device.type == "cuda":
        share = result["seconds"]["the host asks for a step"] / seconds[FRESH]
        print(
            f"the host asks for a step in {share:.1%} of its time: the device {'never waits' if share < 1 else 'waits'}"
        )
    print(json.dumps(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
