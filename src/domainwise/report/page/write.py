"""Puts the parts together and writes the file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.core.provenance import package_version
from domainwise.core.registry import first_paragraph
from domainwise.data.catalogue import usual_selection
from domainwise.protocol.selection import RULES
from domainwise.report import palette
from domainwise.report.page import drawing
from domainwise.report.page.models import Asking, Models, look
from domainwise.report.page.pictures import Picture, ablations
from domainwise.report.page.progress import progress
from domainwise.report.page.results import Section, colours, sections, wholes
from domainwise.sweep.collection import Collection
from domainwise.sweep.domainbed import RESULTS, collect_any
from domainwise.sweep.published import FILE as PUBLISHED

NAME = "report.html"
NOTES = 10
"""How many notes are shown."""


def write_page(
    folder: Path, out: Path | None = None, *, baseline: str = "ERM", asking: Asking | None = None
) -> tuple[Path, Collection]:
    """Writes the page of a folder of runs, whole or not at all; returns where it is and what it was made from.

    With `asking`, trained models are looked at too; without, records alone.
    """
    collection = collect_any(folder)
    if not collection.runs:
        why = f" ({collection.notes[0]})" if collection.notes else ""
        raise UserError(f"{folder} holds no run{why}: give the folder of a sweep, a training or DomainBed's output")
    path = files.writable_file(out or folder / NAME)
    text = render(folder, collection, baseline, asking)
    with files.atomic(path) as file:
        file.write(text.encode())
    return path, collection


def render(folder: Path, collection: Collection, baseline: str, asking: Asking | None) -> str:
    """The page as text. The same records give the same page."""
    shown = sections(collection, baseline)
    rules = [rule for rule in RULES if any(rule in section.views for section in shown)]
    environment = Environment(
        loader=PackageLoader("domainwise.report", "page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    sources = {name: Markup(environment.loader.get_source(environment, f"page.{name}")[0]) for name in ("css", "js")}  # type: ignore[union-attr]
    facts: dict[str, Any] = {
        "title": folder.resolve().name,
        "summary": summary(collection, shown),
        "sections": shown,
        "wholes": wholes(collection),
        "more": [more(folder, section, asking) for section in shown],
        "rules": {rule: re.sub("`(.*?)`", r"“\1”", first_paragraph(RULES[rule].__doc__)) for rule in rules},
        "rule": usual_rule(shown, rules),
        "colours": colours(shown),
        "progress": progress(folder, collection),
        "notes": collection.notes[:NOTES],
        "more_notes": max(0, len(collection.notes) - NOTES),
        "version": package_version("domainwise") or "",
        "updated": last_change(folder),
        "drawing": drawing,
        "palette": palette,
    }
    return environment.get_template("page.html").render(**facts, **sources)


@dataclass(frozen=True)
class More:
    """What an experiment's records and models show beyond its tables, by its first rule."""

    rule: str
    ablations: Sequence[Picture]
    models: Models


def more(folder: Path, section: Section, asking: Asking | None) -> More:
    rule, view = next(iter(section.views.items()))
    models = look(folder, view, asking) if asking is not None else Models()
    return More(rule, ablations(folder, section.group, rule), models)


def usual_rule(shown: Sequence[Section], rules: Sequence[str]) -> str:
    """The one that the first dataset's published numbers go by, where the runs here can be judged by it."""
    dataset = shown[0].group.experiment.dataset if shown else ""
    usual = usual_selection(dataset)
    return usual if usual in rules else next(iter(rules), "")


def summary(collection: Collection, shown: list[Section]) -> str:
    datasets = dict.fromkeys(section.title for section in shown)
    algorithms = dict.fromkeys(run.algorithm for run in collection.runs)
    parts = [counted(len(collection.runs), "run"), counted(len(algorithms), "algorithm"), ", ".join(datasets)]
    return " · ".join(part for part in parts if part)


def last_change(folder: Path) -> str:
    """When a run last wrote something: like the page itself it changes with the records only."""
    names = ("records.jsonl", PUBLISHED, RESULTS)
    found = [path for name in names for path in (folder / name, *folder.glob(f"*/{name}")) if path.is_file()]
    latest = max((path.stat().st_mtime for path in found), default=None)
    return "" if latest is None else f"{datetime.fromtimestamp(latest, UTC):%Y-%m-%d %H:%M} UTC"
