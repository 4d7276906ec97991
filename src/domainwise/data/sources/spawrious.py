"""Spawrious: four breeds of dogs, whose backgrounds in training say the breed and in the test mislead.

Lynch et al. 2023, https://arxiv.org/abs/2303.05470. The settings are DomainBed's. In one-to-one ("O2O") every breed
has one background, in 97 % of the images of one training domain and 87 % of the other's, before a common one; in
many-to-many ("M2M") two breeds swap their two backgrounds between the domains, and others in the test.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from domainwise.core.errors import UserError
from domainwise.data.images.decode import SUFFIXES
from domainwise.data.sources.parts import Part, Source
from domainwise.data.sources.published import Listing, photo_dataset

BREEDS = ("bulldog", "corgi", "dachshund", "labrador")
ORDER = ("bulldog", "dachshund", "labrador", "corgi")
"""The breeds that the backgrounds of a setting belong to, one after another."""
DOMAINS = ("Test", "SC_group_1", "SC_group_2")
"""In the order of DomainBed's numbers."""
PER_FOLDER = 3168
SHARES = (0.97, 0.87)

SETTINGS: dict[str, tuple[str, str, str]] = {
    "O2O_easy": ("desert jungle dirt snow", "dirt snow desert jungle", "beach"),
    "O2O_medium": ("mountain beach dirt jungle", "jungle dirt beach snow", "desert"),
    "O2O_hard": ("jungle mountain snow desert", "mountain snow desert jungle", "beach"),
    "M2M_easy": ("desert mountain dirt jungle", "dirt jungle mountain desert", ""),
    "M2M_medium": ("beach snow mountain desert", "desert mountain beach snow", ""),
    "M2M_hard": ("dirt jungle snow beach", "snow beach dirt jungle", ""),
}
"""Backgrounds of training, of the test, and the common one."""

SPAWRIOUS = Part(
    "Spawrious",
    places=("spawrious224", "spawrious", "Spawrious"),
    needs=(("0",),),
    layout="0/<background>/<breed>/*.png, and the same in 1/",
    by_hand="download spawrious224.tar.gz in a browser from https://github.com/aengusl/spawrious",
    archives=(("spawrious224.tar.gz", "spawrious224"),),
)

ShareOfFolder = tuple[int, str, float]
"""One of the two folders, a background, and the share of its images that is used: a negative one is the rest of one."""


def cells(setting: str) -> dict[str, list[list[ShareOfFolder]]]:
    """{domain: for every breed of ORDER, the cells that its images come from}."""
    train, test, common = SETTINGS[setting]
    own, unseen = train.split(), test.split()
    swapped = [1, 0, 3, 2]
    if common:
        groups = [[[(d, own[k], share), (d, common, -share)] for k in range(4)] for d, share in enumerate(SHARES)]
        both: list[list[ShareOfFolder]] = [[(0, unseen[k], 1.0), (1, unseen[k], 1.0)] for k in range(4)]
        return dict(zip(DOMAINS, [both, *groups], strict=True))
    first: list[list[ShareOfFolder]] = [[(0, own[k], 1.0)] for k in range(4)]
    second: list[list[ShareOfFolder]] = [[(0, own[swapped[k]], 1.0)] for k in range(4)]
    tested: list[list[ShareOfFolder]] = [[(0, unseen[k], 1.0), (0, unseen[swapped[k]], 1.0)] for k in range(4)]
    return dict(zip(DOMAINS, [tested, first, second], strict=True))


def _listing(root: Path, setting: str) -> Listing:
    """The first images of every folder, by the numbers in their names."""
    (zero,) = SPAWRIOUS.find(root, f"Spawrious{setting}")
    listing = Listing(DOMAINS)
    for domain, by_breed in cells(setting).items():
        for breed, parts in zip(ORDER, by_breed, strict=True):
            for number, background, share in parts:
                pictures = _pictures(zero.parent / str(number) / background / breed)
                count = int(abs(share) * PER_FOLDER)
                for file in pictures[: count if share > 0 else PER_FOLDER - count]:
                    listing.add(domain, file, BREEDS.index(breed))
    return listing


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"Spawrious: there is no folder {folder}: unpack the archive again")
    files = [file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")]
    return sorted(
        files, key=lambda file: [int(part) if part.isdecimal() else 0 for part in re.split(r"(\d+)", file.name)]
    )


for _setting in SETTINGS:
    photo_dataset(
        f"Spawrious{_setting}",
        f"Four breeds of dogs whose backgrounds mislead in the test ({_setting.replace('_', ', ')}).",
        DOMAINS,
        BREEDS,
        partial(_listing, setting=_setting),
        Source("https://arxiv.org/abs/2303.05470", "see its page", 50_688, (SPAWRIOUS,)),
        unseen=("Test",),
        evaluate_every=100,
        augmentation="domainbed-uncropped",
    )
