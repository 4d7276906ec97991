"""`domainwise data list`, `domainwise data get`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import download_progress
from domainwise.core import files
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.data.catalogue import Dataset

LIST_EXAMPLES = "Examples:  [bold]domainwise data list[/]   ·   [bold]domainwise data list --json --data-root ~/data[/]"
MANIFEST_EXAMPLES = "Example:  [bold]domainwise data manifest ~/photos --out photos.csv[/]"
GET_EXAMPLES = (
    "Examples:  [bold]domainwise data get ColoredMNIST[/]   ·   [bold]domainwise data get PACS --data-root ~/data[/]"
)

app = typer.Typer(help="Datasets: list them, get them, check your own.", no_args_is_help=True)


@app.command("list", epilog=LIST_EXAMPLES)
def list_datasets(data_root: options.DataRoot = None, as_json: options.Json = False) -> None:
    """Show every dataset: content, size, terms, whether it is present, and where it is searched."""
    from domainwise.data.catalogue import DATASETS
    from domainwise.data.catalogue import data_root as find_root

    root = find_root(data_root)
    facts = {name: describe(data, root) for name, data in DATASETS.items()}
    if as_json:
        print_json({"root": str(root), "datasets": facts})
        return
    table = Table(title=escape(f"Datasets in {root}"), title_justify="left", show_lines=True)
    for heading in ("dataset", "here", "what it is"):
        table.add_column(heading, no_wrap=heading == "here")
    for name, fact in facts.items():
        incomplete = any(part["found"] for part in fact["parts"])
        here = "[green]yes[/]" if fact["present"] else "[yellow]in part[/]" if incomplete else "no"
        table.add_row(f"[bold]{escape(name)}[/]", here, escape(_in_words(fact)))
    console.print(table)
    say("Fetch one, or read how to: domainwise data get NAME")


def describe(data: "Dataset", root: Path) -> dict[str, Any]:
    """A dataset's description as JSON values; paths are below the data root."""
    from domainwise.data.sources.parts import Source

    source = data.source or Source("", "", 0)
    parts = [
        {
            "name": part.name,
            "found": [str(path.relative_to(root)) for path in part.look(root) or []],
            "places": list(part.places),
            "download_bytes": part.size,
            "by_hand": part.by_hand,
        }
        for part in source.parts
    ]
    return {
        "summary": data.summary,
        "domains": data.domains,
        "classes": data.classes,
        "image_shape": data.shape,
        "images": source.images,
        "terms": source.terms,
        "page": source.page,
        "present": all(part["found"] for part in parts),
        "parts": parts,
    }


def _in_words(fact: dict[str, Any]) -> str:
    """The dataset's cell in the table, one fact per line."""
    lines = [
        fact["summary"],
        f"{fact['images']:,} images, {len(fact['classes'])} classes; domains {', '.join(fact['domains'])}.",
        f"Terms: {fact['terms']}. {fact['page']}",
    ]
    for part in fact["parts"]:
        if part["found"]:
            first, *others = part["found"]
            lines.append(f"{part['name']}: {Path(first).parent}/" if others else f"{part['name']}: {first}")
        else:
            size = f", {part['download_bytes'] / 1e6:,.0f} MB" if part["download_bytes"] else ""
            how = f"to download{' by hand' if part['by_hand'] else ''}{size}"
            places = ", ".join(f"{place or '.'}/" for place in part["places"])
            lines.append(f"{part['name']} ({how}): looked for in {places}")
    return "\n".join(lines if fact["parts"] else [*lines, "Comes with the installation."])


@app.command(epilog=MANIFEST_EXAMPLES)
def manifest(
    folder: Annotated[Path, typer.Argument(help="DIR of images at DIR/<domain>/<class>/<image>.")],
    out: Annotated[Path, typer.Option(help="The table to write: .csv.")],
) -> None:
    """Write a table of a folder's images: path, label, domain. Add columns such as group, split or time to it.

    Paths are relative to the table if the images lie below its folder, else absolute.
    """
    from domainwise.core.phrasing import counted
    from domainwise.data.sources.manifest import table_of_folder

    if out.suffix != ".csv":
        raise UserError(f"{out}: the table is written as .csv", argument="out")
    say(f"{out}: {counted(table_of_folder(folder, out), 'image')}; next: domainwise data check {out}")


@app.command(epilog=GET_EXAMPLES)
def get(
    name: Annotated[str, typer.Argument(help="See: domainwise data list.")],
    data_root: options.DataRoot = None,
) -> None:
    """Download a dataset into the data root: resumes an interrupted download, verifies checksums, unpacks safely."""
    from domainwise.core.files import writable_folder
    from domainwise.data.catalogue import DATASETS
    from domainwise.data.catalogue import data_root as find_root

    data = DATASETS[name]
    root = files.expanded(data_root) if data_root else find_root()
    parts = data.source.parts if data.source else ()
    if missing := [part for part in parts if not part.look(root)]:
        writable_folder(root, argument="data_root")
    problems: list[UserError] = []
    with download_progress() as progress:
        for part in missing:
            try:
                part.get(root, name, progress=progress, say=partial(say, to=errors_console))
            except UserError as problem:
                problems.append(problem)
    if problems:
        raise UserError("; ".join(map(str, problems)), argument=problems[0].argument)
    say(f"{name} is in {root}" if parts else f"{name} comes with the installation")
