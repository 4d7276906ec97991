"""`domainwise list`."""

from fnmatch import fnmatch
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from domainwise.cli import options
from domainwise.cli.output import console, print_json
from domainwise.core.errors import UserError

EXAMPLES = (
    "Examples:  [bold]domainwise list[/]   ·   [bold]domainwise list 'DA*'[/]   ·   "
    "[bold]domainwise list --networks 'resnet*' --json[/]   ·   [bold]domainwise list --networks 'timm:vit*'[/]"
)


def list_everything(
    pattern: Annotated[str, typer.Argument(help="Names to show; * stands for any letters: 'DA*'.")] = "*",
    algorithms: Annotated[bool, typer.Option("--algorithms", help="Algorithms only.")] = False,
    datasets: Annotated[bool, typer.Option("--datasets", help="Datasets only.")] = False,
    networks: Annotated[bool, typer.Option("--networks", help="Networks only.")] = False,
    augmentations: Annotated[bool, typer.Option("--augmentations", help="Augmentations only.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show algorithms, datasets, networks and augmentations, one line each."""
    from domainwise.algorithms import ALGORITHMS
    from domainwise.data.augmentations import AUGMENTATIONS
    from domainwise.data.catalogue import DATASETS
    from domainwise.nets import NETWORKS
    from domainwise.nets.hub import FAMILIES, known_names

    hub = known_names(pattern) if networks or not any((algorithms, datasets, augmentations)) else {}
    hub |= {} if as_json else FAMILIES
    things = {
        "algorithms": {name: ALGORITHMS.summary(name) for name in ALGORITHMS},
        "datasets": {name: f"{data.summary} Domains: {', '.join(data.domains)}." for name, data in DATASETS.items()},
        "networks": {name: NETWORKS.summary(name) for name in NETWORKS} | hub,
        "augmentations": {name: chosen.summary for name, chosen in AUGMENTATIONS.items() if chosen is not None},
    }
    wanted = dict(zip(things, (algorithms, datasets, networks, augmentations), strict=True))
    shown = {
        kind: {name: summary for name, summary in entries.items() if fnmatch(name.lower(), pattern.lower())}
        for kind, entries in things.items()
        if wanted[kind] or not any(wanted.values())
    }
    if not any(shown.values()):
        raise UserError(f"no name matches {pattern[:80]!r}: see all with domainwise list")
    if as_json:
        print_json(shown)
        return
    for kind, entries in shown.items():
        if not entries:
            continue
        table = Table(title=kind, title_justify="left", show_header=False, box=None, title_style="bold")
        for name, summary in entries.items():
            table.add_row(f"[bold]{escape(name)}[/]", escape(summary))
        console.print(table, "")
