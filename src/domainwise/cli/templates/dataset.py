"""A dataset of one's own: a function from the data folder to Environments. Here: bars of three tones.

domainwise --plugin THIS_FILE train --dataset Bars --algorithm DAT --test-domain dark
"""

from pathlib import Path

import numpy as np

import domainwise as dw

TONES = {"dark": 90, "middle": 150, "bright": 230}
CLASSES = ("lying", "standing")


@dw.dataset(domains=tuple(TONES), classes=CLASSES, shape=(1, 16, 16), network="small-cnn", steps=101, evaluate_every=50)
def Bars(root: Path) -> dw.Environments:  # noqa: ARG001 (a real dataset reads its files there)
    """A bar that stands or lies, somewhere, over noise: 200 images per tone."""
    arrays = {}
    for seed, (domain, tone) in enumerate(TONES.items()):
        random = np.random.default_rng(seed)
        labels = random.integers(0, 2, 200)
        images = random.integers(0, 60, (200, 1, 16, 16), dtype=np.uint8)
        for image, label, place in zip(images[:, 0], labels, random.integers(2, 14, 200), strict=True):
            if CLASSES[label] == "standing":
                image[2:14, place] = tone
            else:
                image[place, 2:14] = tone
        arrays[domain] = (images, labels)
    return dw.Environments.from_arrays(arrays, name="Bars", classes=CLASSES)
