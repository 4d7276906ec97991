"""Puts the parts of the page together and writes the file."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from domainwise.core import files
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.core.provenance import package_version
from domainwise.core.registry import first_paragraph
from domainwise.data.catalogue import usual_selection
from domainwise.protocol.metrics import ACCURACY, Metric, find_metric
from domainwise.protocol.selection import RULES, Column, Method
from domainwise.reports import style
from domainwise.reports.page import drawing, leaderboard
from domainwise.reports.page.leaderboard import published_folders, together
from domainwise.reports.page.pictures import Picture, ablations
from domainwise.reports.page.progress import progress
from domainwise.reports.page.results import Section, colours, runs_on_all_domains, sections
from domainwise.sweeps.collection import Collection, collect
from domainwise.sweeps.domainbed import RESULTS, collect_any
from domainwise.sweeps.published import FILE as PUBLISHED
from domainwise.sweeps.tables import check_baseline, check_recorded

if TYPE_CHECKING:
    from domainwise.reports.page.models import ModelInsights, ModelOptions

NAME = "report.html"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
NOTES = 10
"""How many notes are shown."""


def report(
    folder: Path | str,
    out: Path | str | None = None,
    *,
    baseline: str = "ERM",
    models: bool = True,
    data_root: Path | None = None,
    device: str = "cpu",
    partial: bool = False,
    metric: str = "accuracy",
) -> Path:
    """Writes one HTML page with all results of a folder of runs, `report.html` in it by default; returns its path.

    Of a folder of published folders it writes their leaderboards, with the records to download.
    Without `models` the page is made from records alone, and neither torch nor the data are needed. Runs that failed or
    are not finished are counted only if `partial`. With another `metric` tables and curves show that, and the rules
    select by it (see `protocol.metrics`); leaderboards are of accuracy.
    """
    options = None
    if models:
        from domainwise.reports.page.models import ModelOptions

        options = ModelOptions(data_root, device)
    path = Path(out) if out is not None else None
    return write_page(Path(folder), path, baseline=baseline, models=options, partial=partial, metric=metric)[0]


def write_page(
    folder: Path,
    out: Path | None = None,
    *,
    baseline: str = "ERM",
    models: "ModelOptions | None" = None,
    partial: bool = False,
    metric: str = "accuracy",
) -> tuple[Path, Collection]:
    """Writes the page, completely or not at all; returns its path and the collection it was made from.

    With `models`, trained models are analysed too; without, the page is made from records alone. Of a folder of
    published folders it shows their leaderboards, and the collection has no curves.
    """
    shown = find_metric(metric)
    collection = collect_any(folder)
    collection = collection if partial else collection.finished()
    inside = {} if collection.runs else {path: collect(path) for path in published_folders(folder)}
    if inside:
        inside = inside if partial else {path: one.finished() for path, one in inside.items()}
        collection = together(inside.values())
    check_baseline(baseline, collection)
    if not collection.runs:
        why = f" ({collection.notes[0]})" if collection.notes else ""
        raise UserError(
            f"{folder} holds no run{why}: give the folder of a sweep, a training, DomainBed's output or published ones"
        )
    if inside and shown != ACCURACY:
        raise UserError(f"{folder} holds published folders: their leaderboards are of accuracy", argument="metric")
    check_recorded(folder, collection, shown)
    path = files.writable_file(out or folder / NAME)
    if inside:
        text = render_leaderboard(folder, inside, baseline)
    else:
        text = render(folder, collection, baseline, models, shown)
    files.write(path, text)
    return path, collection


def render(
    folder: Path, collection: Collection, baseline: str, models: "ModelOptions | None", metric: Metric = ACCURACY
) -> str:
    """The page as text. The same records give the same page."""
    shown = sections(collection, baseline, metric)
    notes = [*collection.completeness().sentences, *collection.notes]
    rules = used_rules(section.views for section in shown)
    further = [more(folder, section, models) for section in shown]
    return fill(
        "page.html",
        folder,
        rules,
        usual_rule(shown, rules),
        summary=summary(collection, shown),
        sections=shown,
        runs_on_all_domains=runs_on_all_domains(collection),
        more=further,
        contents=[contents(section, one) for section, one in zip(shown, further, strict=True)],
        colours=colours(shown),
        progress=progress(folder, collection),
        notes=notes[:NOTES],
        more_notes=max(0, len(notes) - NOTES),
        drawing=drawing,
    )


def render_leaderboard(folder: Path, published: Mapping[Path, Collection], baseline: str) -> str:
    """The page of published folders as text. The same records give the same page."""
    shown = leaderboard.sections(published, baseline)
    rules = used_rules(board.views for section in shown for board in section.boards)
    runs = [run for collection in published.values() for run in collection.runs]
    algorithms = len({run.algorithm for run in runs})
    parts = (counted(len(shown), "experiment"), counted(len(runs), "run"), counted(algorithms, "algorithm"))
    rule = "training-domain" if "training-domain" in rules else next(iter(rules), "")
    facts = {"summary": " · ".join(parts), "sections": shown, "baseline": baseline, "colours": {}}
    return fill("leaderboard.html", folder, rules, rule, **facts)


def used_rules(views: Iterable[Container[str]]) -> list[str]:
    """The selection rules that any of these sections has, in their usual order."""
    known = list(views)
    return [rule for rule in RULES if any(rule in one for one in known)]


def fill(template: str, folder: Path, rules: Sequence[str], rule: str, **facts: Any) -> str:
    """A template with what both pages show."""
    environment = Environment(
        loader=PackageLoader("domainwise.reports", "page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=visible,
    )
    sources = {name: Markup(environment.loader.get_source(environment, f"page.{name}")[0]) for name in ("css", "js")}  # type: ignore[union-attr]
    shared = {
        "title": files.resolved(folder).name,
        "rules": {name: re.sub("`(.*?)`", r"“\1”", first_paragraph(RULES[name].__doc__)) for name in rules},
        "rule": rule,
        "version": package_version("domainwise") or "",
        "updated": last_change(folder),
        "style": style,
    }
    return environment.get_template(template).render(**shared, **sources, **facts)


def visible(value: Any) -> Any:
    """Text with control characters as their pictures (␛ for escape): names may hold some, HTML may not."""
    if isinstance(value, Markup) or not isinstance(value, str | Method | Column):
        return value
    return CONTROL.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "␡", str(value))


@dataclass(frozen=True)
class More:
    """Figures and model insights of an experiment, by its first rule."""

    rule: str
    ablations: Sequence[Picture]
    models: "ModelInsights | None"


def more(folder: Path, section: Section, options: "ModelOptions | None") -> More:
    rule, view = next(iter(section.views.items()))
    models = None
    if options is not None:
        from domainwise.reports.page.models import analyse_models

        models = analyse_models(folder, view, options)
    return More(rule, ablations(folder, section.group, rule), models)


def contents(section: Section, further: More) -> list[tuple[str, str]]:
    """(anchor, words) of the parts of an experiment that are the same under every rule."""
    models = further.models
    insights = models.insights if models is not None else ()
    parts = {
        ("times", "Times"): section.times,
        ("figures", "Hyper-parameters"): further.ablations,
        ("attention", "Attention"): insights,
        ("use", "What did it use?"): insights,
        ("confusion", "Confusion matrices"): insights,
        ("probabilities", "Probabilities"): insights,
        ("perturbations", "Perturbations"): any(one.perturbations for one in insights),
        ("shift", "Which shift is it?"): models is not None and (models.shift or models.no_shift),
    }
    return [name for name, there in parts.items() if there]


def usual_rule(shown: Sequence[Section], rules: Sequence[str]) -> str:
    """The usual rule of the first dataset, if the runs have the evaluations it needs."""
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
    paths = [path for name in names for path in (folder / name, *folder.glob(f"*/{name}")) if path.is_file()]
    latest = max((path.stat().st_mtime for path in paths), default=None)
    return "" if latest is None else f"{datetime.fromtimestamp(latest, UTC):%Y-%m-%d %H:%M} UTC"
