"""`domainwise list`."""

from rich.markup import escape
from rich.table import Table

from domainwise.cli import options
from domainwise.cli.output import console, print_json

EXAMPLES = "Examples:  [bold]domainwise list[/]   ·   [bold]domainwise list --json[/]"


def list_everything(as_json: options.Json = False) -> None:
    """Show every algorithm, dataset, network and augmentation, one line each."""
    from domainwise.algorithms import ALGORITHMS
    from domainwise.data.augmentations import AUGMENTATIONS
    from domainwise.data.catalogue import DATASETS
    from domainwise.nets import NETWORKS

    things = {
        "algorithms": {name: ALGORITHMS.summary(name) for name in ALGORITHMS},
        "datasets": {name: f"{data.summary} Domains: {', '.join(data.domains)}." for name, data in DATASETS.items()},
        "networks": {name: NETWORKS.summary(name) for name in NETWORKS},
        "augmentations": {name: chosen.summary for name, chosen in AUGMENTATIONS.items() if chosen is not None},
    }
    if as_json:
        print_json(things)
        return
    for kind, entries in things.items():
        table = Table(title=kind, title_justify="left", show_header=False, box=None, title_style="bold")
        for name, summary in entries.items():
            table.add_row(f"[bold]{escape(name)}[/]", escape(summary))
        console.print(table, "")
