"""README.md of a model's folder: a model card in the format of the Hugging Face hub.

It is for people, who may edit it. Nothing reads it, and it decides no number. It ends in a digest of what was written:
one that was edited, or that somebody else wrote, is never overwritten.
"""

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from domainwise.core import files
from domainwise.core.phrasing import counted
from domainwise.core.printing import printable
from domainwise.models.card import Card, digest
from domainwise.models.unseen import describe_estimate
from domainwise.nets import hub
from domainwise.nets.weights import WEIGHTS
from domainwise.protocol.network_names import is_hub, network_title
from domainwise.protocol.runs import WeightsReference

FRONT = "---\nlibrary_name: domainwise\npipeline_tag: image-classification\ntags:\n- domain-generalization\n"
WRITTEN = re.compile(rb"\n<!-- written by domainwise ([0-9a-f]{64}) -->\n\Z")
MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|~$:@-])")
LARGEST = 1 << 24


def escaped(name: object) -> str:
    """A name that is text in Markdown and in HTML, on one line."""
    return MARKUP.sub(r"\\\1", html.escape(printable(str(name)), quote=False))


def write_readme(file: Path, card: Card) -> None:
    """Writes the card of a model, unless people have changed the one that is there."""
    if file.exists() and not _is_ours(file):
        return
    text = readme(card).encode(errors="replace")
    files.write(file, text + f"\n<!-- written by domainwise {digest(text)} -->\n".encode())


def _is_ours(file: Path) -> bool:
    data = files.read(file, limit=LARGEST, advice="delete it")
    found = WRITTEN.search(data)
    return found is not None and digest(data[: found.start()]).encode() == found[1]


def readme(card: Card) -> str:
    training = card.training
    parts = [
        f"{FRONT}metrics:\n- accuracy\n---\n",
        f"# {escaped(card.algorithm)}, {escaped(card.network)}\n",
        f"Classifies inputs of shape {list(card.shape)} into {counted(len(card.classes), 'class')}: "
        f"{', '.join(map(escaped, card.classes))}.\n",
        "## Data\n",
        _table(("training domain", "samples"), card.domains.items()),
    ]
    if isinstance(counts := training.get("counts"), Mapping):
        rows = [(d, ", ".join(f"{k}: {v}" for k, v in c.items())) for d, c in counts.items() if isinstance(c, Mapping)]
        parts.append(_table(("domain", "samples per class"), rows))
    parts += ["## Accuracy\n", escaped(describe_estimate(training.get("unseen"))) + ".\n"]
    if isinstance(accuracy := training.get("accuracy"), Mapping) and accuracy:
        scores = [(d, s, f"{100 * v:.1f} %") for d, splits in accuracy.items() for s, v in splits.items()]
        parts.append(_table(("domain", "split", "accuracy"), scores))
    known = escaped(card.calibration) if card.calibration else "none: probabilities are those of the network"
    parts += [
        "## Calibration\n",
        f"{known}.\n",
        "## Limits\n",
        "On a domain that differs from those above, accuracy and probabilities can be worse than stated here.\n",
        "## Made by\n",
        _made(card),
    ]
    return "\n".join(parts)


def _table(headings: tuple[str, ...], rows: Any) -> str:
    lines = [headings, ["---"] * len(headings), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _made(card: Card) -> str:
    """Versions, selection rule, run and the licence of pre-trained weights."""
    run = card.training.get("run") or {}
    facts = [f"{name} {version}" for name, version in card.versions.items()]
    if rule := (card.training.get("unseen") or {}).get("rule"):
        facts.append(f"selection rule: {rule}")
    if "dataset" in run:
        facts.append(f"run {card.training.get('id', '')} on {run['dataset']}, {run.get('steps')} steps")
    if file := WeightsReference.parse(str(run.get("weights", ""))).file:
        licences = [one.licence for one in WEIGHTS.values() if one.file == Path(file).name]
        name, licence = Path(file).name, next(iter(licences), "unknown")
        if is_hub(file):
            name, licence = network_title(file), hub.licence(file) or "unknown"
        facts.append(f"starts from {name}, licence: {licence}")
    return "\n".join(f"- {escaped(fact)}" for fact in facts) + "\n"
