"""The augmentations known by name: their ranges. `data.augment` applies them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from domainwise.core.errors import UserError, unknown


@dataclass(frozen=True)
class Augmentation:
    """Ranges: the crop's share of the area and width / height; the jitter 1 +- j of three factors, and +- j of the hue
    in turns of the colour circle; the shares of flipped and of grey images. With `original_size` crops are taken from
    images at their own sizes, not from images that were resized to the network's."""

    summary: str
    scale: tuple[float, float]
    jitter: tuple[float, float, float, float]
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    grey: float = 0.1
    original_size: bool = False


DOMAINBED = Augmentation("DomainBed's, for images of 224 pixels", (0.7, 1.0), (0.3, 0.3, 0.3, 0.3))
AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "domainbed": DOMAINBED,
    "domainbed-original-size": replace(
        DOMAINBED,
        summary="DomainBed's, cropped from images at their own sizes, which are resampled once",
        original_size=True,
    ),
    "domainbed-uncropped": replace(
        DOMAINBED, summary="DomainBed's for Spawrious, without a crop", scale=(1.0, 1.0), ratio=(1.0, 1.0)
    ),
    "oodbench": Augmentation("OoD-Bench's, for NICO", (0.8, 1.0), (0.4, 0.4, 0.4, 0.4)),
}


def check_augmentation(name: str, shape: Sequence[int], where: str, *, from_files: bool) -> str:
    """The name, if it is known and images of this shape, read `from_files` or not, can be augmented so."""
    if name not in AUGMENTATIONS:
        raise unknown("augmentation", name, AUGMENTATIONS)
    augmentation = AUGMENTATIONS[name]
    if augmentation is not None and (len(shape) != 3 or shape[0] != 3):
        raise UserError(f"augmentation {name} is for RGB images; {where} has inputs of shape {tuple(shape)}: use none")
    if augmentation is not None and augmentation.original_size and not from_files:
        raise UserError(
            f"augmentation {name} needs images at their own sizes; {where} is not read from image files: use domainbed",
            argument="augmentation",
        )
    return name
