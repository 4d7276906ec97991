"""The augmentations known by name: their ranges. `data.augment` applies them."""

from collections.abc import Sequence
from dataclasses import dataclass

from domainwise.core.errors import UserError, unknown


@dataclass(frozen=True)
class Augmentation:
    """Ranges: the crop's share of the area and width / height; the jitter 1 +- j of three factors, and +- j of the hue
    in turns of the colour circle; the shares of flipped and of grey images."""

    summary: str
    scale: tuple[float, float]
    jitter: tuple[float, float, float, float]
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    grey: float = 0.1


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "domainbed": Augmentation("DomainBed's, for images of 224 pixels", (0.7, 1.0), (0.3, 0.3, 0.3, 0.3)),
    "domainbed-uncropped": Augmentation(
        "DomainBed's for Spawrious, without a crop", (1.0, 1.0), (0.3, 0.3, 0.3, 0.3), ratio=(1.0, 1.0)
    ),
    "oodbench": Augmentation("OoD-Bench's, for NICO", (0.8, 1.0), (0.4, 0.4, 0.4, 0.4)),
}


def check_augmentation(name: str, shape: Sequence[int], where: str) -> str:
    """The name, if it is known and images of this shape can be augmented so."""
    if name not in AUGMENTATIONS:
        raise unknown("augmentation", name, AUGMENTATIONS)
    if AUGMENTATIONS[name] is not None and (len(shape) != 3 or shape[0] != 3):
        raise UserError(f"augmentation {name} is for RGB images; {where} has inputs of shape {tuple(shape)}: use none")
    return name
