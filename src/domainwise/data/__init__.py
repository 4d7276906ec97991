"""Data: files -> decoded once, uint8 -> Environments (resident on the device) -> batches [E, B, C, H, W]."""

from domainwise.data import digit_domains as _digit_domains  # noqa: F401 (these register their datasets)
from domainwise.data import mnist as _mnist  # noqa: F401
from domainwise.data import photos as _photos  # noqa: F401
from domainwise.data.catalogue import DATASETS, Dataset, data_root, dataset, title, usual_selection
from domainwise.data.environments import Environments
from domainwise.data.folder import find_dataset, image_folder

__all__ = [
    "DATASETS",
    "Dataset",
    "Environments",
    "data_root",
    "dataset",
    "find_dataset",
    "image_folder",
    "title",
    "usual_selection",
]
