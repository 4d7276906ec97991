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


LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
PICTURE = re.compile(r"<(?:img|source)\b[^>]*>")
ATTRIBUTE = re.compile(r'(?P<name>[\w-]+)="(?P<value>[^"]*)"')


class Link(NamedTuple):
    """A link or a picture; `text` is what is shown, or the alternative text."""

    target: str
    text: str
    is_picture: bool


def without_blocks(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def links(page: Path) -> list[Link]:
    """Links and pictures, of Markdown and of HTML; a <source> of a picture has no text of its own."""
    text = re.sub(r"`[^`\n]+`", "code", without_blocks(page))
    found = [Link(m["target"], m["text"], bool(m["picture"])) for m in LINK.finditer(text)]
    for tag in PICTURE.findall(text):
        attributes = {m["name"]: m["value"] for m in ATTRIBUTE.finditer(tag)}
        alternative = "(source)" if tag.startswith("<source") else attributes.get("alt", "")
        found.append(Link(attributes.get("src") or attributes["srcset"], alternative, True))
    return found


def anchors(page: Path) -> set[str]:
    """Of the headings that can be linked to, as GitHub and the site name them."""
    titles = re.findall(r"^#{1,3} (.+)$", without_blocks(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def first_paragraph(page: Path) -> str:
    """What comes after the title, as one line."""
    title, _, rest = page.read_text(encoding="utf-8").partition("\n\n")
    assert title.startswith("# ") and "\n" not in title, f"{page.name} begins with its title"
    return " ".join(rest.partition("\n\n")[0].split())
