"""`domainwise features`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import complete, options
from domainwise.cli.output import say
from domainwise.cli.reading_flags import with_reading_flags
from domainwise.protocol.reading import PLAIN, Reading

EXAMPLES = (
    "Examples:  [bold]domainwise features PACS --network resnet50 --out pacs-features[/]"
    "   ·   [bold]domainwise features ~/photos --network resnet18 --out photos.parquet[/]"
)


@with_reading_flags
def features(
    data: Annotated[
        str, typer.Argument(help="A dataset by name, or your own images.", autocompletion=complete.datasets)
    ],
    network: Annotated[
        str,
        typer.Option(help="Pre-trained network whose features to compute.", autocompletion=complete.networks),
    ],
    out: Annotated[Path, typer.Option(help="Folder (a dataset for other commands), .parquet or .safetensors file.")],
    skip_bad: options.SkipBad = False,
    reading: Reading = PLAIN,
    weights: options.Weights = "",
    image_size: options.ImageSize = None,
    precision: options.Precision = "fp32",
    device: options.Device = "auto",
    data_root: options.DataRoot = None,
) -> None:
    """Compute the features of all images by a pre-trained network, once, and write them as vectors.

    A folder is a dataset of vectors: train, sweep and compare on it take seconds. Features are kept in the cache, so an
    interrupted command continues.
    """
    from domainwise.data.feature_files import check_target, write_features
    from domainwise.data.find import find_dataset
    from domainwise.models.features import extract_features

    check_target(out)
    vectors = extract_features(
        find_dataset(data, skip_bad=skip_bad, reading=reading),
        network,
        weights=weights,
        image_size=image_size,
        precision=precision,
        device=device,
        data_root=data_root,
    )
    write_features(vectors, out)
    say(f"{out}: {len(vectors.images):,} images, {vectors.shape[0]} features each, of {network}")
    if not out.suffix:
        say(f"next: domainwise train --dataset {out} --network linear --algorithm ERM --test-domain 0")
