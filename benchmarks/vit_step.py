"""The step time of a vision transformer: the engine in its modes beside the plain loop and the rate of matrix products.

The network is a ViT-B/16 of transformers with random weights (86 million parameters; nothing is downloaded), the images
are made up: they take as long as real ones. `of_matrix_rate` is the share of the time that the step's products need at
the measured rate of large matrix products: 0.5 is twice the arithmetic floor.

    python benchmarks/vit_step.py --json results/bench/h200-vit-b16.json
    python benchmarks/vit_step.py --device cpu --tiny
"""

import argparse
import json
import logging
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from torch.nn import functional as F

from domainwise import Environments
from domainwise.cli.bench.machine import describe
from domainwise.cli.bench.steps import Bench
from domainwise.core.provenance import package_version
from domainwise.data.catalogue import Dataset

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = 7
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def save_vit(folder: Path, tiny: bool) -> str:
    """Saves a ViT with the usual configuration, and random weights; returns its name."""
    import transformers

    config = transformers.ViTConfig(**(TINY if tiny else {}))
    torch.manual_seed(0)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    processor = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 224, "width": 224}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return f"hf:{folder}"


def made_up(images: int) -> Environments:
    """Smooth noise of 224 x 224 pixels, the same in every domain."""
    noise = torch.rand(images, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    smooth = (255 * F.interpolate(noise, size=(224, 224), mode="bilinear")).to(torch.uint8)
    data = {domain: (smooth, torch.arange(images) % CLASSES) for domain in DOMAINS}
    return Environments.from_arrays(data, name="made up")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--algorithms", default="ERM,DAT")
    parser.add_argument("--batch-size", type=int, default=32, help="per domain, of three [default: 32]")
    parser.add_argument("--images", type=int, default=400, help="per domain [default: 400]")
    parser.add_argument("--precisions", default="bf16")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement [default: 2]")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two narrow layers: to try the script")
    parser.add_argument("--json", type=Path, help="file to write")
    given = parser.parse_args()
    logging.basicConfig(format="%(message)s")  # why a step is not captured or compiled
    device = torch.device(given.device)
    about = describe(device) | {"transformers": package_version("transformers"), "batch_size": given.batch_size}
    print(json.dumps(about))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        network = save_vit(Path(folder) / "vit-b16", given.tiny)
        dataset = Dataset.from_environments(made_up(given.images))
        bench = Bench(dataset, network, given.batch_size, device, budget=given.seconds)
        for row in bench.rows(given.algorithms.split(","), given.precisions.split(","), 1):
            rows.append(asdict(row))
            print(json.dumps(rows[-1]), flush=True)
            if given.json is not None:  # row by row: a machine may be lent for minutes
                given.json.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
