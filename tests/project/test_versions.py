"""The pinned versions, and the hashes that the set-up holds them to."""

import re
from pathlib import Path

from lock_versions import UNLOCKED

ROOT = Path(__file__).parents[2]


def test_every_pinned_version_that_the_set_up_locks_has_hashes() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = [line for line in lines if line.partition("==")[0] not in UNLOCKED]
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())[1:]
    assert [block.split()[0] for block in blocks] == pinned, "python tools/lock_versions.py > requirements.lock"
    for block in blocks:
        assert re.fullmatch(r"\S+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", block), block
