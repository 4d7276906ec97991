"""Images that are nearly the same: re-encoded, resized or brightened copies, found by a perceptual hash.

The hash of an image is 64 bits: the signs of its 8 x 8 lowest frequencies (a discrete cosine transform of a small grey
copy) against their median. Pairs whose hashes agree in one of four bands are compared in full, and a pair that differs
in few bits is confirmed on the grey copies themselves.
"""

import base64
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from domainwise.data.images.decode import THUMBNAIL

FREQUENCIES = 8
BANDS = 4
MOST_BITS = 8
"""Bits of 64 by which the hashes of nearly equal images differ at most; unrelated images differ by about 32."""
CORRELATION = 0.99
"""Between the grey copies of nearly equal images, at least."""
FLAT = 3.0
"""Standard deviation in grey levels below which an image has no structure to compare."""
BLOCK = 512
_ONES = np.array([bin(number).count("1") for number in range(256)], np.uint8)


def near_pairs(thumbnails: Sequence[str]) -> list[tuple[int, int]]:
    """The pairs (i, j), i < j, of images that look nearly the same, by the thumbnails of `decode.facts`."""
    if len(thumbnails) < 2:
        return []
    raw = b"".join(map(base64.b64decode, thumbnails))
    grey = np.frombuffer(raw, np.uint8).reshape(-1, THUMBNAIL, THUMBNAIL).astype(np.float32)
    centred = grey - grey.mean((1, 2), keepdims=True)
    spread = centred.std((1, 2))
    rows = np.flatnonzero(spread > FLAT)
    if len(rows) < 2:
        return []
    looks = (centred[rows] / spread[rows, None, None]).reshape(len(rows), -1)
    hashes = _hashes(centred[rows])
    pairs = {pair for pair in _candidates(hashes) if looks[pair[0]] @ looks[pair[1]] >= CORRELATION * looks.shape[1]}
    return sorted((int(rows[i]), int(rows[j])) for i, j in pairs)


def _hashes(centred: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """[N, 8] bytes."""
    k, x = np.arange(FREQUENCIES)[:, None], np.arange(THUMBNAIL)[None, :]
    cosines = np.cos(np.pi * k * (2 * x + 1) / (2 * THUMBNAIL)).astype(np.float32)
    spectrum = (cosines @ centred @ cosines.T).reshape(len(centred), -1)
    return np.packbits(spectrum > np.median(spectrum[:, 1:], axis=1, keepdims=True), axis=1)


def _candidates(hashes: npt.NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Pairs whose hashes agree in one band and differ in few bits in all."""
    width = hashes.shape[1] // BANDS
    for band in range(BANDS):
        keys = hashes[:, band * width : (band + 1) * width].copy().view(f"u{width}").ravel()
        order = np.argsort(keys, kind="stable")
        for bucket in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            for start in range(0, len(bucket) if len(bucket) > 1 else 0, BLOCK):
                part = bucket[start : start + BLOCK]
                bits = _ONES[hashes[part, None] ^ hashes[None, bucket[start:]]].sum(-1, dtype=np.uint8)
                for i, j in zip(*np.nonzero(bits <= MOST_BITS), strict=True):
                    if i < j:
                        first, second = sorted((int(part[i]), int(bucket[start + j])))
                        yield first, second
