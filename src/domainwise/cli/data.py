"""`domainwise data list`, `domainwise data get`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from domainwise.cli.common import DataRoot, Json, console, errors_console, print_json
from domainwise.errors import UserError

if TYPE_CHECKING:
    from domainwise.data.catalogue import Dataset
    from domainwise.data.downloads import Download
    from domainwise.data.downloads import Progress as Told

LIST_EXAMPLES = "Examples:  [bold]domainwise data list[/]   ·   [bold]domainwise data list --json --data-root ~/data[/]"
GET_EXAMPLES = (
    "Examples:  [bold]domainwise data get ColoredMNIST[/]   ·   [bold]domainwise data get PACS --data-root ~/data[/]"
)

app = typer.Typer(
    help="The datasets: which there are, which are here, and how to get the others.", no_args_is_help=True
)


@app.command("list", epilog=LIST_EXAMPLES)
def list_datasets(data_root: DataRoot = None, as_json: Json = False) -> None:
    """Show every dataset: what it is, its size and terms, whether it is here, where it is looked for."""
    from domainwise.data import DATASETS
    from domainwise.data import data_root as find_root

    root = find_root(data_root)
    facts = {name: describe(data, root) for name, data in DATASETS.items()}
    if as_json:
        print_json({"root": str(root), "datasets": facts})
        return
    table = Table(title=f"Datasets in {root}", title_justify="left", show_lines=True)
    for heading in ("dataset", "here", "what it is"):
        table.add_column(heading, no_wrap=heading != "what it is")
    for name, fact in facts.items():
        here = "[green]yes[/]" if fact["present"] else "[yellow]in part[/]" if any(fact["parts"].values()) else "no"
        table.add_row(f"[bold]{name}[/]", here, _in_words(fact).replace("[", r"\["))
    console.print(table)
    console.print("Get one: domainwise data get NAME", highlight=False)


def describe(data: "Dataset", root: Path) -> dict[str, Any]:
    """What is known of a dataset, as plain JSON values."""
    source = data.source
    found = {part.name: part.look(root) for part in source.parts} if source else {}
    return {
        "summary": data.summary,
        "domains": data.domains,
        "classes": data.classes,
        "shape": data.shape,
        "images": source.images if source else None,
        "present": all(found.values()),
        "parts": {name: [str(path) for path in paths or []] for name, paths in found.items()},
        "places": {part.name: [str(root / place) for place in part.places] for part in source.parts} if source else {},
        "download_bytes": source.size if source else 0,
        "by_hand": [part.by_hand for part in source.parts if part.by_hand] if source else [],
        "terms": source.terms if source else "",
        "page": source.page if source else "",
    }


def _in_words(fact: dict[str, Any]) -> str:
    """The cell of the table: one fact a line."""
    count = f"{fact['images']:,} images of {len(fact['classes'])} classes" if fact["images"] else "in memory"
    lines = [fact["summary"], f"{count}; domains {', '.join(fact['domains'])}"]
    if fact["places"]:
        size = f"{fact['download_bytes'] / 1e6:,.0f} MB" if fact["download_bytes"] else "by hand, in a browser"
        lines.append(f"Download: {size}. Terms: {fact['terms']}. {fact['page']}")
        for name, places in fact["places"].items():
            paths = fact["parts"][name]
            missing = f"{name}: looked for in {', '.join(places)}"
            lines.append(f"{name}: {Path(paths[0]).parent}" if paths else missing)
    else:
        lines.append(f"Comes with the installation. Terms: {fact['terms']}." if fact["terms"] else "")
    return "\n".join(filter(None, lines))


@app.command(epilog=GET_EXAMPLES)
def get(
    name: Annotated[str, typer.Argument(help="See: domainwise data list.")],
    data_root: DataRoot = None,
) -> None:
    """Fetch a dataset into the data root: continues if it was interrupted, checks checksums, unpacks safely."""
    from domainwise.data import DATASETS
    from domainwise.data import data_root as find_root
    from domainwise.files import writable_folder

    data = DATASETS.find(name)
    root = data_root.expanduser() if data_root else find_root()
    parts = data.source.parts if data.source else ()
    if missing := [part for part in parts if not part.look(root)]:
        writable_folder(root)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    problems = []
    with Progress(*columns, TimeRemainingColumn(), console=errors_console, transient=True) as bar:

        def progress(download: "Download") -> "Told":
            task = bar.add_task(Path(download.file).name, total=download.size)
            return lambda done, total: bar.update(task, completed=done, total=total or download.size)

        for part in missing:
            try:
                part.get(root, name, progress=progress)
            except UserError as problem:
                problems.append(str(problem))
    if problems:
        raise UserError("; ".join(problems))
    console.print(f"{name} is in {root}" if parts else f"{name} comes with the installation", highlight=False)
