"""The pinned versions, and the hashes that the set-up holds them to."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_pinned_version_but_torch_has_hashes() -> None:
    pinned = [line for line in (ROOT / "constraints.txt").read_text().split() if not line.startswith("torch==")]
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())[1:]
    assert [block.split()[0] for block in blocks] == pinned, "python tools/lock_versions.py > requirements.lock"
    for block in blocks:
        assert re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", block), block
