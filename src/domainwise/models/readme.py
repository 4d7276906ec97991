"""README.md of a model's folder: a model card in the format of the Hugging Face hub.

It is for people, who may edit it. Nothing reads it, and it decides no number. It ends in a digest of what was written:
one that was edited, or that somebody else wrote, is never overwritten.
"""

import html
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from domainwise.core import files
from domainwise.core.phrasing import counted
from domainwise.core.printing import printable
from domainwise.models.card import Card, digest
from domainwise.models.unseen import describe_test_rows, describe_unseen, metric_of
from domainwise.nets import hub
from domainwise.nets.weights import WEIGHTS
from domainwise.protocol.calibration import SOURCES
from domainwise.protocol.dataset_names import title
from domainwise.protocol.metrics import ACCURACY, METRICS
from domainwise.protocol.network_names import is_hub, network_title
from domainwise.protocol.runs import TEST_ROWS, WeightsReference
from domainwise.protocol.statistics import Estimate, wilson
from domainwise.sweeps.commands import without_paths

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
    match = WRITTEN.search(data)
    return match is not None and digest(data[: match.start()]).encode() == match[1]


def readme(card: Card) -> str:
    training = card.training
    shape = " x ".join(map(str, card.shape))
    kind = f"images of {shape} (channels, height, width)" if len(card.shape) == 3 else f"rows of {shape} numbers"
    parts = [
        _front(card),
        f"# {escaped(card.algorithm)}, {escaped(card.network)}\n",
        f"Classifies {kind} into {counted(len(card.classes), 'class')}: {', '.join(map(escaped, card.classes))}.\n",
        "## Data\n",
        _table(("training domain", "samples"), card.domains.items()),
    ]
    if isinstance(counts := training.get("counts"), Mapping):
        rows = [(d, ", ".join(f"{k}: {v}" for k, v in c.items())) for d, c in counts.items() if isinstance(c, Mapping)]
        parts.append(_table(("domain", "samples per class"), rows))
    known = escaped(card.calibration) if card.calibration else "none: probabilities are those of the network"
    parts += [
        "## Accuracy\n",
        *_unseen(card),
        *_metrics(card),
        *_last_layer(card),
        "## Selection\n",
        f"{escaped(card.weights)}.\n",
        "## Calibration\n",
        f"{known}.\n",
        "## Limits\n",
        _listed(_limits(card)),
        "## Licence\n",
        _listed(_licences(card)),
        "## Made by\n",
        *_made(card),
    ]
    return "\n".join(parts)


def _front(card: Card) -> str:
    """What a hub reads, in YAML: what may hold any name is written as JSON, which is YAML."""
    summary, run = card.training.get("unseen"), card.training.get("run") or {}
    metric = metric_of(summary) if summary else ACCURACY
    facts: dict[str, Any] = {
        "library_name": "domainwise",
        "pipeline_tag": "image-classification",
        "license": "unknown",
        "tags": ["domain-generalization"],
        "metrics": [metric.name],
    }
    if summary and "dataset" in run:
        dataset = printable(title(run["dataset"]))
        found = {
            "type": metric.name,
            "name": f"{metric.title} on unseen domains{metric.unit}",
            "value": summary["mean"],
        }
        result = {
            "task": {"type": "image-classification"},
            "dataset": {"name": dataset, "type": dataset},
            "metrics": [found],
        }
        facts["model-index"] = [{"name": f"{card.algorithm} {printable(card.network)}", "results": [result]}]
    texts = ((name, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for name, v in facts.items())
    lines = [f"{name}: {text}" for name, text in texts]
    return "\n".join(["---", *lines, "---", ""])


def _table(headings: tuple[str, ...], rows: Any) -> str:
    lines = [headings, ["---"] * len(headings), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _listed(sentences: Iterable[str]) -> str:
    return "".join(f"- {escaped(sentence)}\n" for sentence in sentences)


def _unseen(card: Card) -> Iterator[str]:
    """What to expect on a new domain."""
    summary = card.training.get("unseen")
    if test_rows := card.training.get("test_rows"):
        yield f"{escaped(describe_test_rows(test_rows))}.\n"
    yield f"{escaped(describe_unseen(card.training))}.\n"
    if summary and len(domains := summary["domains"]) > 1:
        errors = summary.get("errors", {})
        metric = metric_of(summary)
        rows = [(domain, str(Estimate(mean, errors.get(domain), 0, metric))) for domain, mean in domains.items()]
        yield _table(("domain left out", metric.title + metric.unit), rows)


def _metrics(card: Card) -> Iterator[str]:
    """Every metric of every domain and split, accuracies with their intervals."""
    accuracy, samples = card.training.get("accuracy"), card.training.get("samples", {})
    if not isinstance(accuracy, Mapping) or not accuracy:
        return
    measured, test_rows = card.training.get("metrics", {}), (card.training.get("test_rows") or {}).get("domains", {})
    shown = [metric for metric in METRICS.values() if metric is not ACCURACY]
    rows = []
    for domain, splits in accuracy.items():
        for split, value in splits.items():
            n = samples.get(domain, {}).get(split, 0)
            low, high = wilson(value, n) if n else (0.0, 1.0)
            interval = f" ({100 * low:.1f} to {100 * high:.1f})" if n else ""
            others = measured.get(domain, {}).get(split, {})
            numbers = [others.get(metric.field) for metric in shown]
            kind = TEST_ROWS if domain in test_rows else "unseen"
            which = {"in": "trained on", "out": "held out"}[split] if domain in card.domains else f"{kind} ({split})"
            cells = ["" if x is None else m.format(m.shown(x)) for m, x in zip(shown, numbers, strict=True)]
            rows.append((domain, which, n or "", f"{100 * value:.1f}{interval}", *cells))
    before = {metric: ", before calibration" for metric in shown if card.calibration and metric.temperature_changes_it}
    titles = [metric.title + before.get(metric, "") + metric.unit for metric in shown]
    yield _table(("domain", "samples are", "samples", "accuracy, per cent (95 % interval)", *titles), rows)
    yield (
        "Intervals (Wilson) are of other samples of the same domain, for these weights; they say nothing of other "
        f"domains. Only accuracy has one.{_chosen_by_held_out(card)}\n"
    )


def _chosen_by_held_out(card: Card) -> str:
    """Whether accuracies on held-out samples are optimistic, as a sentence; empty if they are not."""
    saved = card.training.get("weights") or {}
    chosen = saved.get("selected") or "made_of" in card.training
    return " Held-out samples have helped to select the weights." if chosen else ""


def _last_layer(card: Card) -> Iterator[str]:
    """Accuracies before and after a last layer that was trained anew."""
    if later := card.training.get("last_layer"):
        rows = [
            (one["domain"], one["class"], one["samples"], f"{100 * one['before']:.1f}", f"{100 * one['after']:.1f}")
            for one in later["groups"]
        ]
        yield _table(("domain", "class", "held-out samples", "accuracy before, per cent", "after"), rows)
        yield "After: by a layer that was fitted to the other half of these samples.\n"


def _limits(card: Card) -> Iterator[str]:
    yield "On a domain that differs from those above, accuracy and probabilities can be worse than stated here."
    yield "Whatever it is given, it answers with one of its classes."
    if card.calibration is None:
        yield "Its probabilities are not calibrated: they are no measure of how often it is right."
    else:
        if card.calibration.source == "held-out":
            yield f"Its probabilities were calibrated {SOURCES['held-out']}."
        yield from (f"Calibration: {warning}." for warning in card.calibration.warnings)
    if str(card.training.get("predictions", "")).startswith("depend"):
        yield "Predictions depend on the batch they are made in: all of its inputs must come from one domain."
    if card.window is not None:
        yield f"Grey values of 16-bit images below {card.window[0]} are read as black, above {card.window[1]} as white."
    if len(card.shape) == 3:
        yield f"Images of any size are resized to {card.shape[2]} x {card.shape[1]}: smaller details are lost."


def _licences(card: Card) -> Iterator[str]:
    file = WeightsReference.parse(str((card.training.get("run") or {}).get("weights", ""))).file
    if file:
        licences = [one.licence for one in WEIGHTS.values() if one.file == Path(file).name]
        name, licence = Path(file).name, next(iter(licences), "unknown")
        if is_hub(file):
            name, licence = network_title(file), hub.licence(file) or "unknown"
        yield f"It starts from the weights {name}, licence: {licence}."
    elif "run" in card.training:
        yield "It starts from random weights."
    yield "The licence of the data, and that of this model, are not known here: add them."


def _made(card: Card) -> Iterator[str]:
    """Versions, run and command."""
    run = card.training.get("run") or {}
    facts = [f"{name} {version}" for name, version in card.versions.items()]
    if "dataset" in run:
        facts.append(f"run {card.training.get('id', '')} on {title(run['dataset'])}, {run.get('steps')} steps")
    yield _listed(facts)
    command = card.training.get("command")
    if command and "made_of" not in card.training:  # what made its parts would not make it
        words = shlex.split(str(command))
        published = without_paths(words)
        yield f"    {printable(shlex.join(published))}\n"
        if published != words:
            yield "Files and folders go by their last name here: run it where they lie.\n"
