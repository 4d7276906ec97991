"""What it costs and changes to take training crops from images at their own sizes, beside those resized to 224 pixels.

Works on any folder DIR/<domain>/<class>/*.jpg. Measures decoding (both caches are built in a temporary folder), disk
space, and augmented batches on one CPU thread, for which both kinds take turns: in CPU time, which hardly depends on
what else the machine does. Then the energy of the Laplacian of training crops (of their grey values, 0 to 255, before
flips and colours change), a measure of how sharp they are: cropped from resized images, from images at their own sizes,
and by Pillow from the files, all three by the same random numbers.

    python benchmarks/original_size.py DIR [--rounds 9] [--json FILE]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from decode import helpers_seconds, seconds
from domainwise import Environments
from domainwise.cli.bench.machine import describe
from domainwise.core.seeds import generator
from domainwise.core.threads import cores
from domainwise.data.augment import Augmenter, OriginalsAugmenter, for_augmentation, preparation
from domainwise.data.batches import batches_of
from domainwise.data.sources.folder import image_folder, scan
from domainwise.kernels.augment import LUMA

SIZE, BATCH, SAMPLE = 224, 32, 200
RESIZED, ORIGINAL = "domainbed", "domainbed-original-size"
CPU = torch.device("cpu")


def augmenter(name: str, data: Environments) -> Augmenter:
    made = preparation(name, data, generator("augmentation"))
    assert made is not None
    return made


def measured(read: Callable[[], object]) -> dict[str, float]:
    """What reading takes, the first time by decoding."""
    before = helpers_seconds()
    return {"seconds": seconds(read), "cpu_seconds": helpers_seconds() - before}


def batch_cpu_seconds(data: dict[str, Environments], rounds: int) -> dict[str, float]:
    """The median CPU time of drawing and augmenting a batch, all kinds in turns; the first round warms up."""
    draws = {}
    for kind, environments in data.items():
        rows = [environments.split(domain, 0)["in"] for domain in environments.domains[:3]]
        prepare = augmenter(RESIZED if environments.originals is None else ORIGINAL, environments)
        draws[kind] = batches_of(environments, rows, BATCH, generator("bench"), prepare).draw
    times: dict[str, list[float]] = {kind: [] for kind in draws}
    for _ in range(rounds + 1):
        for kind, draw in draws.items():
            began = time.process_time()
            draw()
            times[kind].append(time.process_time() - began)
    return {kind: statistics.median(found[1:]) for kind, found in times.items()}


def energy(x: Tensor) -> float:
    """The mean square of the Laplacian of an image's grey values; x is [3, H, W] in 0 to 1."""
    grey = 255 * (x * torch.tensor(LUMA).view(3, 1, 1)).sum(0)
    middle, beside = grey[1:-1, 1:-1], (grey[:-2, 1:-1], grey[2:, 1:-1], grey[1:-1, :-2], grey[1:-1, 2:])
    return float((4 * middle - sum(beside)).square().mean())


def energies(resized: Environments, originals: Environments, files: list[Path]) -> dict[str, dict[str, float]]:
    """By domain, the mean energies of crops of the three kinds."""
    old, new = augmenter(RESIZED, resized), augmenter(ORIGINAL, originals)
    assert isinstance(new, OriginalsAugmenter) and originals.originals is not None
    found, unflipped = {}, torch.zeros(1)
    for domain in resized.domains:
        kinds: dict[str, list[float]] = {"resized": [], "original_size": [], "pillow": []}
        rows = resized.rows(domain)
        for row in rows[:: max(1, len(rows) // SAMPLE)].tolist():
            numbers, image = new.draw(1), Image.open(files[row]).convert("RGB")
            place = originals.originals.places[row : row + 1]
            crop = old.crop(resized.images[row : row + 1], old.parameters(numbers).boxes, unflipped)
            kinds["resized"].append(energy(crop[0]))
            boxes = new.parameters(numbers, new.sizes(place)).boxes
            kinds["original_size"].append(energy(new.crop(place, boxes, unflipped)[0]))
            ((top, left, tall, wide),) = new.parameters(numbers, torch.tensor([image.size[::-1]])).boxes.tolist()
            part = image.crop((int(left), int(top), int(left + wide), int(top + tall)))
            pixels = np.array(part.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
            kinds["pillow"].append(energy(torch.from_numpy(pixels).permute(2, 0, 1) / 255))
        found[domain] = {"images": float(len(kinds["pillow"]))} | {k: statistics.mean(v) for k, v in kinds.items()}
    return found


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    found = image_folder(folder)
    read = partial(found.loader, Path(), SIZE)
    decoding = {"resized": measured(read)}
    resized: Environments = read()
    decoding["original_size"] = measured(lambda: for_augmentation(ORIGINAL, resized))
    again: Environments = read()
    opening = {"resized": seconds(read), "original_size": seconds(lambda: for_augmentation(ORIGINAL, again))}
    originals = for_augmentation(ORIGINAL, resized)
    assert originals.originals is not None
    stores = {"resized": resized.images, "original_size": originals.originals.pixels}
    kinds = {"resized": resized, "original_size": originals}
    streamed = {f"{kind}_streamed": data.to("cpu", streamed=True) for kind, data in kinds.items()}
    return {
        "images": len(resized.labels),
        "cores": cores(),
        "decoding": decoding,
        "opening_again_seconds": opening,
        "bytes": {kind: store.nbytes for kind, store in stores.items()},
        "batch": [3, BATCH],
        "batch_cpu_seconds": batch_cpu_seconds(kinds | streamed, rounds),
        "laplacian_energy": energies(resized, originals, [Path(file) for file in scan(folder).files]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["DOMAINWISE_CACHE"] = cache
        found = describe(CPU) | measure(arguments.folder, arguments.rounds)
    for kind, took in found["decoding"].items():
        rate, opened = found["images"] / took["cpu_seconds"], found["opening_again_seconds"][kind]
        size = found["bytes"][kind] / 1e9
        print(f"{kind:25s} {rate:6.0f} images decoded per CPU second, {size:.2f} GB, opened again in {opened:.2f} s")
    for kind, took in found["batch_cpu_seconds"].items():
        print(f"{kind:25s} {1000 * took:6.0f} ms of CPU time for an augmented batch of 3 x {BATCH}")
    for domain, values in found["laplacian_energy"].items():
        shares = ", ".join(f"{kind} {values[kind] / values['pillow']:.3f}" for kind in ("resized", "original_size"))
        print(f"{domain:25s} energy of Pillow's crops {values['pillow']:.0f}; as a share of that {shares}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
