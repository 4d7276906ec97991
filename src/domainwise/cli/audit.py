"""`domainwise audit`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from domainwise.cli.cam import OfDataset, OfDomain, OfTrial, Runs
from domainwise.cli.common import DataRoot, Device, Json, console, print_json, say
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.analysis.audit import Audit, DomainScore
    from domainwise.analysis.choose import Wanted

EXAMPLES = (
    "Examples:  [bold]domainwise audit runs/demo[/]   ·   "
    "[bold]domainwise audit runs/sweep --selected --json[/]   ·   "
    "[bold]domainwise audit runs/train/1f0c0ffee0000000 --out audit.pdf --json[/]"
)


def audit(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="Also a picture: .png, .pdf or .svg.")] = None,
    dataset: OfDataset = None,
    test_domain: OfDomain = None,
    trial: OfTrial = None,
    selected: Annotated[
        bool, typer.Option("--selected", help="Of a sweep, every run that a rule selected; kept with its records.")
    ] = False,
    data_root: DataRoot = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """What did a model use? The object, or a shortcut: colour, background, whatever tells the domains apart.

    On any dataset: accuracy per domain and class, the worst pair, and how well a linear probe tells the domains from
    the features. ColoredMNIST: colours swapped. BackgroundDigits: backgrounds swapped, removed, alone. Mixed-Same: the
    background gap. All on images that were not trained on.
    """
    from domainwise.analysis.attention import restore_all
    from domainwise.analysis.audit import audit as ask
    from domainwise.analysis.choose import Wanted, chosen_folders
    from domainwise.report.audited import audit_figure
    from domainwise.report.canvas import save, writable_picture

    if out is not None:
        writable_picture(out)
    wanted = Wanted(dataset, test_domain, trial)
    if selected and out is not None:
        raise UserError("--selected answers for many models, a picture for one per method: leave one of the two out")
    if selected:
        _selected(runs, wanted, data_root, device, as_json)
        return
    folders = chosen_folders(runs, wanted)
    audits = [ask(trained, data_root) for trained in restore_all(folders, data_root, device)]
    if out is not None:
        save(audit_figure(audits), out)
    if as_json:
        print_json({"audits": [_as_json(found) for found in audits], "picture": str(out) if out else None})
        return
    for found in audits:
        console.print(_table(found))
        for sentence in found.sentences:
            say(f"  {sentence}")
    if out is not None:
        say(f"Picture: {out}")


def _selected(folders: Sequence[Path], wanted: "Wanted", data_root: Path | None, device: str, as_json: bool) -> None:
    """A line for every model that a rule chose: what it was chosen for, and what it used."""
    from domainwise.analysis.selected import audit_selected

    found = [one for folder in folders for one in audit_selected(folder, wanted, data_root, device)]
    if as_json:
        print_json({"audits": [one.as_json() for one in found]})
        return
    for one in found:
        say(str(one))


def _columns(found: "Audit") -> dict[str, dict[str, float]]:
    """The dataset's own questions, by heading, per domain."""
    use = {} if found.use is None else asdict(found.use)
    headings = {"swapped": "swapped", "black": "on black", "alone": "background alone"}
    return {heading: use[name] for name, heading in headings.items() if name in use}


def _table(found: "Audit") -> Table:
    table = Table(title=escape(str(found.run)), title_justify="left", box=None, padding=(0, 2, 0, 0))
    columns = _columns(found)
    for heading in ("domain", "images", "accuracy", *columns, "worst class"):
        table.add_column(heading, justify="left" if heading in ("domain", "worst class") else "right")
    for score in found.scores:
        table.add_row(
            escape(score.domain if score.seen else f"{score.domain} (unseen)"),
            str(score.images),
            f"{100 * score.accuracy:.1f} %",
            *[f"{100 * column[score.domain]:.1f} %" for column in columns.values()],
            escape(_worst(score, found.classes)),
        )
    return table


def _worst(score: "DomainScore", classes: Sequence[str]) -> str:
    """The worst class of a domain where not all is right, and how many images say so."""
    wrong = [c for c in range(len(classes)) if score.counts[c] > 0 and score.per_class[c] < 1]
    if not wrong:
        return ""
    worst = min(wrong, key=lambda c: float(score.per_class[c]))
    return f"{classes[worst]}: {100 * float(score.per_class[worst]):.0f} % of {int(score.counts[worst])}"


def _as_json(found: "Audit") -> dict[str, Any]:
    domains = [
        {
            "domain": score.domain,
            "seen": score.seen,
            "images": score.images,
            "accuracy": score.accuracy,
            "per_class": {
                name: float(score.per_class[c]) for c, name in enumerate(found.classes) if score.counts[c] > 0
            },
        }
        for score in found.scores
    ]
    probe = None
    if found.probe is not None:
        probe = asdict(found.probe) | {"confusion": found.probe.confusion.tolist(), "chance": found.probe.chance}
    return {
        "run": found.run.id,
        "method": found.name,
        "domains": domains,
        "commonest_answer": asdict(found.commonest),
        "worst": None if found.worst is None else asdict(found.worst),
        "worst_of_few": None if found.worst_of_few is None else asdict(found.worst_of_few),
        "probe": probe,
        "shortcut": None if found.use is None else asdict(found.use),
        "sentences": found.sentences,
    }
