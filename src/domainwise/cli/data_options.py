"""The data and the network that the options of a command mean."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.cli.output import errors_console, say
from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.find import find_dataset
from domainwise.data.sources.folder import image_folder, scan_present
from domainwise.data.sources.saved import is_saved
from domainwise.data.sources.table_files import is_table
from domainwise.nets.weights import WEIGHTS, find, for_network
from domainwise.protocol.network_names import is_hub, network_title
from domainwise.protocol.reading import Reading

if TYPE_CHECKING:
    from domainwise.cli.data_flags import DataFlags
    from domainwise.data.environments import Environments
    from domainwise.models.model import Model

PRETRAINED, SCRATCH = "resnet18", "small-cnn"


def choose_data_and_network(
    flags: "DataFlags", network: str, weights: str, data_root: Path | None
) -> tuple[Dataset, str | None]:
    """The data, and the network: None means the dataset's; for a folder it depends on the weights in the data root."""
    data, named = _chosen(flags, network, weights, data_root)
    if is_hub(named):
        seen = for_network(data, named)
        if len(seen.shape) == 3 and seen.shape[0] == 3:
            from domainwise.nets.backbones import describe

            say(f"network: {network_title(str(named))}: {describe(str(named), seen.shape)}", errors_console)
    return data, named


def _chosen(flags: "DataFlags", network: str, weights: str, data_root: Path | None) -> tuple[Dataset, str | None]:
    dataset, folder, skip_bad, reading = flags.dataset, flags.folder, flags.skip_bad, flags.reading
    named = None if network == "auto" else network
    if folder is not None and dataset is not None:
        raise UserError("give either --dataset NAME or --data DIR, not both")
    name = dataset if folder is None else str(folder)
    if name is None:
        raise UserError("name the data: --dataset NAME (see: domainwise list), or --data DIR for your own images")
    path = files.expanded(name)
    if is_saved(path) or (folder is None and (name in DATASETS or not (path.is_dir() or is_table(path)))):
        return find_dataset(name, skip_bad=skip_bad, reading=reading), named
    data = image_folder(name, skip_bad=skip_bad, reading=reading)
    if len(data.classes) < 2:
        raise UserError(f"{data.title} has one class only ({data.classes[0]}): a classifier needs two")
    for note in scan_present(files.resolved(name), reading, skip_bad).notes():
        say(f"note: {note}", errors_console)
    if named is None:
        named, reason = _default_network(weights, data_root)
        say(reason, errors_console)
    return data, named


def labelled_data(
    model: "Model", data: str, skip_bad: bool, reading: Reading, data_root: Path | None
) -> "Environments":
    """Data as the model reads them: at its size, and with its window for your own 16-bit images."""
    window = model.preprocessing.window
    if window is not None and reading.window is None and data not in DATASETS:
        reading = replace(reading, window=window)
    if window is not None and reading.window not in (None, window):
        given, own = (f"{low}:{high}" for low, high in (reading.window, window))
        words = f"images are read with the window {given}, not {own}, which the model was trained with"
        say(f"warning: {words}", errors_console)
    return find_dataset(data, skip_bad=skip_bad, reading=reading).load(data_root, model.preprocessing.shape[-1])


def _default_network(weights: str, data_root: Path | None) -> tuple[str, str]:
    """The network for a folder of images, and the reason for it."""
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
