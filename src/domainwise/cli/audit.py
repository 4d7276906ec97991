"""`domainwise audit`."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli import options
from domainwise.cli.filter_flags import with_run_filter
from domainwise.cli.output import console, print_json, say
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.analysis.audit import Audit, DomainAudit
    from domainwise.analysis.run_choice import RunFilter
    from domainwise.core.table import Table

EXAMPLES = (
    "Examples:  [bold]domainwise audit runs/demo[/]   ·   "
    "[bold]domainwise audit runs/sweep --selected --json[/]   ·   "
    "[bold]domainwise audit runs/train/1f0c0ffee0000000 --out audit.pdf --json[/]"
)


@with_run_filter
def audit(
    runs: options.RunFolders,
    out: options.OptionalPicture = None,
    *,
    run_filter: "RunFilter",
    selected: Annotated[
        bool,
        typer.Option("--selected", help="Audit every selected run of a sweep, and store the results."),
    ] = False,
    data_root: options.DataRoot = None,
    device: options.Device = "cpu",
    as_json: options.Json = False,
) -> None:
    """What did a model use? The object, or a shortcut: colour, background, or another sign of the domain.

    On any dataset: accuracy per domain and class, the worst pair, and how well a linear probe recognises the domain
    from the features. ColoredMNIST: colours swapped. BackgroundDigits: backgrounds swapped, removed, alone. Mixed-Same:
    the background gap. All on images that were not trained on.
    """
    from domainwise.analysis.attention import restore_all
    from domainwise.analysis.audit import audit as audit_model
    from domainwise.analysis.run_choice import run_folders
    from domainwise.reports.pictures import audit_figure
    from domainwise.reports.style import save, writable_picture

    if out is not None:
        writable_picture(out)
    if selected and out is not None:
        raise UserError("--selected audits many models, --out draws one per method: leave one of the two out")
    if selected:
        _print_selected(runs, run_filter, data_root, device, as_json)
        return
    folders = run_folders(runs, run_filter)
    models = restore_all(folders, data_root, device)
    audits = [audit_model(trained, data_root) for trained in models]
    if out is not None:
        save(audit_figure(audits), out)
    if as_json:
        content = [_as_json(one) | {"weights": trained.weights} for one, trained in zip(audits, models, strict=True)]
        print_json({"audits": content, "picture": str(out) if out else None})
        return
    for one, trained in zip(audits, models, strict=True):
        console.print(replace(_table(one), caption=trained.weights))
        for sentence in one.sentences:
            say(f"  {sentence}")
    if out is not None:
        say(f"Picture: {out}")


def _print_selected(
    folders: Sequence[Path], run_filter: "RunFilter", data_root: Path | None, device: str, as_json: bool
) -> None:
    """A line for every model that a rule selected: the rules, and its audit."""
    from domainwise.analysis.audit import audit_selected

    audits = [one for folder in folders for one in audit_selected(folder, run_filter, data_root, device)]
    if as_json:
        print_json({"audits": [one.as_json() for one in audits]})
        return
    for one in audits:
        say(str(one))


def _table(audit: "Audit") -> "Table":
    from domainwise.core.table import Table

    use = {} if audit.use is None else asdict(audit.use)
    headings = {"swapped": "swapped", "black": "on black", "alone": "background alone"}
    changed = {heading: use[name] for name, heading in headings.items() if name in use}
    rows = [
        [
            score.domain if score.seen else f"{score.domain} (unseen)",
            _worst(score, audit.classes),
            str(score.images),
            f"{100 * score.accuracy:.1f} %",
            *[f"{100 * accuracy[score.domain]:.1f} %" for accuracy in changed.values()],
        ]
        for score in audit.scores
    ]
    return Table(("domain", "worst class", "images", "accuracy", *changed), rows, str(audit.run), labels=2)


def _worst(score: "DomainAudit", classes: Sequence[str]) -> str:
    """The class with the lowest accuracy, if below 1, and its number of images."""
    wrong = [c for c in range(len(classes)) if score.counts[c] > 0 and score.per_class[c] < 1]
    if not wrong:
        return ""
    worst = min(wrong, key=lambda c: float(score.per_class[c]))
    return f"{classes[worst]}: {100 * float(score.per_class[worst]):.0f} % of {int(score.counts[worst])}"


def _as_json(audit: "Audit") -> dict[str, Any]:
    domains = [
        {
            "domain": score.domain,
            "seen": score.seen,
            "images": score.images,
            "accuracy": score.accuracy,
            "per_class": {
                name: float(score.per_class[c]) for c, name in enumerate(audit.classes) if score.counts[c] > 0
            },
        }
        for score in audit.scores
    ]
    probe = None
    if audit.probe is not None:
        probe = asdict(audit.probe) | {"confusion": audit.probe.confusion.tolist(), "chance": audit.probe.chance}
    return {
        "run": audit.run.id,
        "method": str(audit.method),
        "domains": domains,
        "commonest_answer": asdict(audit.commonest),
        "worst": None if audit.worst is None else asdict(audit.worst),
        "worst_of_few": None if audit.worst_of_few is None else asdict(audit.worst_of_few),
        "probe": probe,
        "shortcut": None if audit.use is None else asdict(audit.use),
        "sentences": audit.sentences,
    }
