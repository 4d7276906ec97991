"""The data of a training or a search: a dataset by name or a folder of the user's own, and its first network."""

from pathlib import Path

from domainwise.cli.output import errors_console, say
from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.find import find_dataset
from domainwise.data.sources.folder import image_folder, scan
from domainwise.nets.weights import WEIGHTS, find

PRETRAINED, SCRATCH = "resnet18", "small-cnn"


def choose(
    dataset: str | None, own: Path | None, skip_bad: bool, network: str, weights: str, data_root: Path | None
) -> tuple[Dataset, str | None]:
    """The data, and the network if one was named or had to be chosen: for a folder, by whether there are weights."""
    named = None if network == "auto" else network
    if own is not None and dataset is not None:
        raise UserError("give either --dataset NAME or --data DIR, not both")
    name = dataset if own is None else str(own)
    if name is None:
        raise UserError("name the data: --dataset NAME (see: domainwise list), or --data DIR for your own images")
    if own is None and (name in DATASETS or not Path(name).expanduser().is_dir()):
        return find_dataset(name, skip_bad=skip_bad), named
    data = image_folder(name, skip_bad=skip_bad)
    if len(data.classes) < 2:
        raise UserError(f"{data.title} has one class only ({data.classes[0]}): nothing to tell apart")
    for note in scan(Path(name).expanduser().resolve()).notes():
        say(f"note: {note}", errors_console)
    if named is None:
        named, why = _begin_with(weights, data_root)
        say(why, errors_console)
    return data, named


def _begin_with(weights: str, data_root: Path | None) -> tuple[str, str]:
    """The network for a folder when none is named, and why."""
    try:
        file = find(weights or WEIGHTS[PRETRAINED].file, data_root)
    except UserError:
        if weights:
            raise
        how = f"domainwise weights get {PRETRAINED}"
        return SCRATCH, (
            f"network: {SCRATCH} from scratch at 64 pixels, quick to train; "
            f"for {PRETRAINED} from ImageNet weights at 224 pixels get them once: {how}"
        )
    return PRETRAINED, (
        f"network: {PRETRAINED} from the weights {file} at 224 pixels; "
        f"for a quick start from scratch at 64 pixels: --network {SCRATCH}"
    )
