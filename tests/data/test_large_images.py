"""Images too large for several of them in memory."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from domainwise.data.images import decode


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1", "I;16"])
def test_a_large_image_is_made_smaller_first_and_looks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((320, 320), Image.Resampling.BICUBIC)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) << 8)
    else:
        image = image.convert(mode)
    image.save(tmp_path / "x.png")
    exact = decode.read(tmp_path / "x.png", 16).astype(int)
    monkeypatch.setattr(decode, "ROOM", 1000)
    monkeypatch.setattr(decode, "_room", decode._Room())
    assert np.abs(decode.read(tmp_path / "x.png", 16) - exact).max() <= 3
    assert decode._room.free == 1000
