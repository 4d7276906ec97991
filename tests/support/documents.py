"""The repository's documents and the blocks of code in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(m["kind"], m["text"]) for m in BLOCK.finditer(page.read_text(encoding="utf-8"))]
