"""Decode once: how fast a folder's cache is built, how soon a run can start on it afterwards, and what a batch costs.

Works on any folder DIR/<domain>/<class>/*.jpg. The cache is built in a temporary folder, beside a plain loop of one
process that decodes and resizes a sample of the same images with Pillow.

    python benchmarks/decode.py DIR [--size 224] [--json FILE]
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from domainwise.core.seeds import generator
from domainwise.core.threads import cores
from domainwise.data.batches import batches_of
from domainwise.data.sources.folder import image_folder, scan

SAMPLE, BATCH, DRAWS, STEP_SECONDS = 300, 32, 30, 0.05


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def plain(files: list[Path], size: int) -> None:
    for file in files:
        Image.open(file).convert("RGB").resize((size, size), Image.Resampling.BILINEAR).tobytes()


def batch_seconds(folder: Path, size: int, streamed: bool) -> float:
    """What drawing B images of each domain costs a step that itself takes 50 ms, without augmentation."""
    data = image_folder(folder).load(image_size=size).to("cpu", streamed=streamed)
    rows = [data.split(domain, 0)["in"] for domain in data.domains]
    batches = batches_of(data, rows, BATCH, generator("bench"))
    batches.next()
    taken = 0.0
    for _ in range(DRAWS):
        time.sleep(STEP_SECONDS)
        taken += seconds(batches.next)
    return taken / DRAWS


def helpers_seconds() -> float:
    """CPU time of the helper processes that have ended: what decoding cost, however busy the machine is otherwise."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, size: int) -> dict[str, float]:
    found = scan(folder)
    files = [Path(file) for file in found.files[:: max(1, len(found.files) // SAMPLE)]]
    one_core = len(files) / seconds(lambda: plain(files, size))
    before = helpers_seconds()
    build = seconds(lambda: image_folder(folder).load(image_size=size))
    cpu = helpers_seconds() - before
    open_again = seconds(lambda: image_folder(folder).loader(Path(), size))
    return {
        "images": len(found.files),
        "size": size,
        "cores": cores(),
        "plain_images_per_second": one_core,
        "build_seconds": build,
        "build_images_per_second": len(found.files) / build,
        "images_per_cpu_second": len(found.files) / cpu,
        "open_again_seconds": open_again,
        "batch_images": BATCH * len(found.domains),
        "resident_batch_seconds": batch_seconds(folder, size, streamed=False),
        "streamed_batch_seconds": batch_seconds(folder, size, streamed=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["DOMAINWISE_CACHE"] = cache
        found = measure(arguments.folder, arguments.size)
    print(
        "{images} images to {size} pixels on {cores} cores\n"
        "one process, Pillow     {plain_images_per_second:8.0f} images/s\n"
        "building the cache      {build_images_per_second:8.0f} images/s ({build_seconds:.1f} s)\n"
        "  per core and CPU time {images_per_cpu_second:8.0f} images/s\n"
        "opening it again        {open_again_seconds:8.2f} s\n"
        "a batch of {batch_images} images beside a step of 50 ms, without augmentation\n"
        "  resident              {resident_batch_seconds:8.4f} s\n"
        "  streamed              {streamed_batch_seconds:8.4f} s".format(**found)
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
