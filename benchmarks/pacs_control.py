"""Is what we lack on sketches ours? ERM on PACS by a plain loop, with one ingredient of ours after the other.

The control shares nothing with the engine but the file of weights and the split. Pillow augments images in the workers
of a DataLoader, the network is written in plain PyTorch, steps are eager, the optimiser is torch's: `--with control`.
Other values of `--with` replace ingredients by those of a training of ours:

    stored     images are resized to 224 x 224 before they are cropped, so that they are resampled twice
    augment    such images are augmented on the device, by real numbers instead of Pillow's whole ones
    kernels    the same by the engine's kernels
    original   images at their own sizes are augmented on the device, so that they are resampled once
    precision  bf16 instead of tf32
    head       the classifier starts from the weights that our run of this trial starts from
    sampling   batches are those of our run of this trial
    adam       the engine's optimiser

and `--with engine` is a training of ours as it is (`engine,precision`: in bf16; `engine,original`: with
`--augmentation domainbed-original-size`). All share the split of their trial, so that differences are paired. Accuracy
is on all images of the unseen domain, without augmentation, every 300 steps.

    python benchmarks/pacs_control.py --with control --with stored --with augment,precision --with engine \\
        --data-root DATA --trials 10 --json FILE

`make reproduce-pacs-control` goes from the control to ours, one ingredient after the other.

DATA holds PACS/ and resnet50_imagenet.safetensors. Results are added to FILE, and what it holds is not trained again.
"""

import argparse
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from domainwise import DATASETS, Environments, kernels, train
from domainwise.cli.bench.machine import describe
from domainwise.core import files, seeds
from domainwise.data.augment import for_augmentation, preparation
from domainwise.data.batches import Batches
from domainwise.data.sources.image_files import in_class_folders
from domainwise.engine.assemble import make_algorithm
from domainwise.engine.execution.isolation import RunContext
from domainwise.engine.session import stream_keys
from domainwise.kernels.adam import adam
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run

INGREDIENTS = ("stored", "augment", "kernels", "original", "precision", "head", "sampling", "adam")
CONTROL, ENGINE = "control", "engine"
SIZE, BATCH, LR, EVERY = 224, 32, 5e-5, 300
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BLOCKS = (3, 4, 6, 3)


class Block(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the stride is on the first, as in the original paper."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class PlainResNet50(nn.Module):
    """ResNet-50 and a linear classifier; BatchNorms never leave eval mode, as in DomainBed."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        inputs = 64
        for number, count in enumerate(BLOCKS):
            width, blocks = 64 << number, []
            for block in range(count):
                blocks.append(Block(inputs, width, 2 if number and not block else 1))
                inputs = 4 * width
            setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for number in range(len(BLOCKS)):
            x = getattr(self, f"layer{number + 1}")(x)
        return self.fc(x.mean((2, 3)).float())

    def train(self, mode: bool = True) -> "PlainResNet50":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


def crop_box(width: int, height: int, draw: random.Random) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a crop with 0.7 to 1 of the area and sides in a ratio of 3/4 to 4/3."""
    for _ in range(10):
        area = draw.uniform(0.7, 1) * width * height
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = draw.randint(0, width - wide), draw.randint(0, height - tall)
            return left, top, left + wide, top + tall
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def turned(image: Image.Image, turn: float) -> Image.Image:
    """With its hue turned, in turns of the colour circle."""
    hue, saturation, value = image.convert("HSV").split()
    shifted = (np.asarray(hue).astype(np.int16) + round(255 * turn)).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


def augmented(image: Image.Image, draw: random.Random) -> Image.Image:
    """RandomResizedCrop, horizontal flip, ColorJitter(0.3, 0.3, 0.3, 0.3) in random order, RandomGrayscale(0.1)."""
    image = image.crop(crop_box(*image.size, draw)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if draw.random() < 0.5:
        image = ImageOps.mirror(image)
    enhance: list[Callable[[Image.Image], Image.Image]] = [
        lambda x: ImageEnhance.Brightness(x).enhance(draw.uniform(0.7, 1.3)),
        lambda x: ImageEnhance.Contrast(x).enhance(draw.uniform(0.7, 1.3)),
        lambda x: ImageEnhance.Color(x).enhance(draw.uniform(0.7, 1.3)),
        lambda x: turned(x, draw.uniform(-0.3, 0.3)),
    ]
    draw.shuffle(enhance)
    for change in enhance:
        image = change(image)
    return ImageOps.grayscale(image).convert("RGB") if draw.random() < 0.1 else image


def normalised(image: Image.Image) -> Tensor:
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    return (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


class Images(Dataset[tuple[Tensor, int]]):
    """Files in RAM as Pillow decodes them, and a list of (row, seed of its augmentation; None: only resized)."""

    def __init__(self, pictures: Sequence[Image.Image], labels: Sequence[int], items: Sequence[tuple[int, int | None]]):
        self.pictures, self.labels, self.items = pictures, labels, items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        row, seed = self.items[number]
        image = self.pictures[row]
        if seed is None:
            image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        else:
            image = augmented(image, random.Random(seed))
        return normalised(image), self.labels[row]


class Control:
    """Trains ERM with some ingredients of ours on the split of a run."""

    def __init__(self, data_root: Path, device: torch.device, unseen: str, steps: int, workers: int) -> None:
        self.data_root, self.device, self.unseen, self.steps, self.workers = data_root, device, unseen, steps, workers
        self.data: Environments = DATASETS["PACS"].load(data_root)

    def run(self, trial: int, precision: str, augmentation: str) -> Run:
        options: dict[str, Any] = {"network": "resnet50-v1", "precision": precision, "steps": self.steps}
        return plan_run("PACS", "ERM", self.unseen, trial=trial, augmentation=augmentation, **options)

    @cached_property
    def stored(self) -> list[Image.Image]:
        """In the order of the dataset's rows, of 224 x 224 as we store them."""
        return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in self.data.images]

    @cached_property
    def decoded(self) -> list[Image.Image]:
        """In the same order, as they are in their files."""
        folders = [self.data_root / "PACS" / domain for domain in self.data.domains]
        listed = [file for folder in folders for file, _ in in_class_folders(folder, self.data.classes)]
        assert len(listed) == len(self.data.labels)
        return [Image.open(file).convert("RGB") for file in listed]

    def accuracies(self, given: Sequence[str], trial: int) -> list[float]:
        """After every evaluation."""
        usual = "tf32" if self.device.type == "cuda" else "fp32"
        augmentation = "domainbed-original-size" if "original" in given else "domainbed"
        run = self.run(trial, "bf16" if "precision" in given else usual, augmentation)
        if ENGINE in given:
            return self._by_engine(run)
        with RunContext(self.device, run.precision):
            return self._by_hand(given, run)

    def _by_engine(self, run: Run) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            records = train(run, folder, device=str(self.device), environments=self.data).records
        sizes = {name: len(rows) for name, rows in self.data.split(self.unseen, run.trial).items()}
        found = []
        for step in sorted({record.step for record in records}):
            rows = [row for row in records if row.step == step and row.domain == self.unseen]
            found.append(sum(row.accuracy * sizes[row.split] for row in rows) / sum(sizes.values()))
        return found

    def _by_hand(self, given: Sequence[str], run: Run) -> list[float]:
        network = self._network("head" in given, run).to(self.device).train()
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        parameters = list(network.parameters())
        ours = "adam" in given
        optimizer = adam(parameters, LR, (0.9, 0.999), 0.0) if ours else torch.optim.Adam(parameters, lr=LR)
        cast = (lambda: torch.autocast(self.device.type, torch.bfloat16)) if run.precision == "bf16" else nullcontext
        found = []
        for step, (x, y) in enumerate(self._batches(given, run)):
            with cast():
                loss = F.cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % EVERY == 0 or step == self.steps - 1:
                found.append(self._accuracy(network.eval(), cast))
                network.train()
        return found

    def _network(self, ours: bool, run: Run) -> PlainResNet50:
        torch.manual_seed(run.trial)
        network = PlainResNet50(len(self.data.classes))
        torch.manual_seed(seeds.seed("weights", *stream_keys(run)))
        data, sizes = self.data.standardised(self._rows(run)[0]), [len(rows) for rows in self._rows(run)]
        algorithm = make_algorithm(
            "ERM", run.network, run.hparams, data.preprocessing, sizes, weights=run.weights, data_root=self.data_root
        )
        start = algorithm.network
        missing = network.load_state_dict(start.features.state_dict(), strict=False)
        assert missing.missing_keys == ["fc.weight", "fc.bias"] and not missing.unexpected_keys
        if ours:
            network.fc.load_state_dict(start.classifier.state_dict())
        return network

    def _rows(self, run: Run) -> list[Tensor]:
        return [self.data.split(domain, run.trial)["in"] for domain in run.train_domains]

    def _drawn(self, ours: bool, run: Run) -> Tensor:
        """The rows of every step, [steps, images]."""
        rows = self._rows(run)
        if ours:
            stream = seeds.generator("batches", *stream_keys(run), device=self.device)
            batches = Batches(self.data.to(self.device), rows, BATCH, stream)
            return torch.stack([batches.next_rows().flatten().cpu() for _ in range(self.steps)])
        generator = torch.Generator().manual_seed(run.trial)
        shape = (self.steps, BATCH)
        drawn = [part[torch.randint(len(part), shape, generator=generator)] for part in rows]
        return torch.cat(drawn, 1)

    def _batches(self, given: Sequence[str], run: Run) -> Iterator[tuple[Tensor, Tensor]]:
        drawn = self._drawn("sampling" in given, run)
        if {"augment", "kernels", "original"} & {*given}:
            data = for_augmentation(run.augmentation, self.data).to(self.device)
            generator = seeds.generator("augmentation", *stream_keys(run), device=self.device)
            with nullcontext() if "kernels" in given else kernels.disabled():
                prepare = preparation(run.augmentation, data, generator)
                assert prepare is not None
                for rows in drawn.to(self.device):
                    *images, labels = data.gather_for_training(rows)
                    yield prepare(*images), labels
            return
        numbers = iter(range(run.trial << 32, (run.trial + 1) << 32))
        items = [(row, next(numbers)) for row in drawn.flatten().tolist()]
        yield from self._loaded(items, drawn.shape[1], "stored" in given)

    def _loaded(
        self, items: Sequence[tuple[int, int | None]], batch_size: int, stored: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        images = Images(self.stored if stored else self.decoded, self.data.labels.tolist(), items)
        for x, y in DataLoader(images, batch_size, num_workers=self.workers, pin_memory=self.device.type == "cuda"):
            x = x.to(self.device, non_blocking=True, memory_format=torch.channels_last)
            yield x, y.to(self.device, non_blocking=True)

    @torch.no_grad()
    def _accuracy(self, network: nn.Module, cast: Callable[[], Any]) -> float:
        correct = torch.zeros((), device=self.device)
        batches = self._unseen_batches
        for x, y in batches:
            with cast():
                correct += (network(x).argmax(1) == y).sum()
        return float(correct) / sum(len(y) for _, y in batches)

    @cached_property
    def _unseen_batches(self) -> list[tuple[Tensor, Tensor]]:
        """Resized once, from the files."""
        rows = self.data.rows(self.unseen).tolist()
        return list(self._loaded([(row, None) for row in rows], 256, False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--with", dest="given", action="append", required=True, help=f"{CONTROL}, or some of {', '.join(INGREDIENTS)}"
    )
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--unseen", default="sketch")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1501)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no training after so many")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    os.environ["DOMAINWISE_DATA"] = str(options.data_root)  # where runs look for weights
    began = time.monotonic()
    control = Control(options.data_root, torch.device(options.device), options.unseen, options.steps, options.workers)
    results = json.loads(options.json.read_text()) if options.json.exists() else {"accuracies": {}}
    results |= {"machine": describe(control.device), "unseen": options.unseen, "steps": options.steps}
    for trial in range(options.trials):
        for given in options.given:
            names = [] if given == CONTROL else given.split(",")
            if unknown := set(names) - {*INGREDIENTS, ENGINE}:
                parser.error(f"unknown ingredient {', '.join(sorted(unknown))}")
            found = results["accuracies"].setdefault(given, {})
            if str(trial) in found or time.monotonic() - began > options.seconds:
                continue
            started = time.monotonic()
            found[str(trial)] = control.accuracies(names, trial)
            files.write(options.json, json.dumps(results, indent=1))
            later = found[str(trial)][1:]
            mean = sum(later) / max(1, len(later))
            print(f"{given}, trial {trial}: {mean:.1%} ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
