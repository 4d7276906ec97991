"""`domainwise weights list`, `domainwise weights get`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from domainwise.cli import options
from domainwise.cli.output import console, print_json, say
from domainwise.cli.progress import download_progress
from domainwise.core import files
from domainwise.core.errors import UserError, unknown
from domainwise.core.table import Table

LIST_EXAMPLES = "Examples:  [bold]domainwise weights list[/]   ·   [bold]domainwise weights list --json[/]"
GET_EXAMPLES = (
    "Examples:  [bold]domainwise weights get resnet18[/]   ·   "
    "[bold]domainwise weights get resnet50 --data-root ~/data[/]   ·   "
    "[bold]domainwise weights get hf:facebook/dinov2-base[/]"
)

app = typer.Typer(help="Pre-trained weights: list them, get them.", no_args_is_help=True)


@app.command("list", epilog=LIST_EXAMPLES)
def list_weights(data_root: options.DataRoot = None, as_json: options.Json = False) -> None:
    """Show the weights known by name and any other file of weights in the data root, with licence and normalisation."""
    from domainwise.data.catalogue import data_root as find_root
    from domainwise.nets.hub import cache_folder
    from domainwise.nets.weights import FOLDER, NORMALISATION

    root = find_root(data_root)
    known, others = describe(root)
    hub = describe_hub()
    if as_json:
        content = {"weights": known, "other_files": others, "hub": hub}
        print_json({"root": str(root), "normalisation": NORMALISATION, **content})
        return
    table = RichTable(title=escape(f"Weights in {root / FOLDER} and {root}"), title_justify="left", show_lines=True)
    for heading in ("weights", "here", "what they are"):
        table.add_column(heading, no_wrap=heading == "here")
    for name, fact in known.items():
        here = "[green]yes[/]" if fact["path"] else "no"
        size = f", {fact['bytes'] / 1e6:,.0f} MB" if fact["bytes"] else ""
        lines = [
            f"{fact['summary']}.",
            f"{fact['file']}{size}. Licence: {fact['licence']}.",
            f"For the networks {', '.join(fact['networks'])}." if fact["networks"] else "By --weights.",
        ]
        table.add_row(f"[bold]{name}[/]", here, escape("\n".join(lines)))
    for file in others:
        table.add_row(f"[bold]{escape(Path(file).name)}[/]", "[green]yes[/]", escape(f"{file}: a file of your own."))
    console.print(table)
    say(f"All expect images as {NORMALISATION}.")
    if hub:
        rows = [(name, one["commit"][:12], f"{one['bytes'] / 1e6:,.0f}", one["licence"]) for name, one in hub.items()]
        headings = ("network", "commit", "MB", "licence")
        console.print(Table(headings, rows, f"Backbones in {cache_folder()}", labels=4))
    say("Fetch published ones: domainwise weights get NAME, also hf:NAME and timm:NAME")


def describe(root: Path) -> tuple[dict[str, Any], list[str]]:
    """The weights known by name, as JSON values, and the other files of weights in the data root."""
    from domainwise.nets import NETWORKS, pretrained_weights
    from domainwise.nets.loading import SUFFIXES
    from domainwise.nets.weights import FOLDER, WEIGHTS

    files = [file for folder in (root / FOLDER, root) if folder.is_dir() for file in sorted(folder.iterdir())]
    paths = {file.name: str(file) for file in reversed(files) if file.suffix in SUFFIXES}
    known = {
        name: {
            "file": weights.file,
            "path": paths.get(weights.file, ""),
            "summary": weights.summary,
            "licence": weights.licence,
            "bytes": weights.size,
            "sha256": weights.sha256,
            "networks": [network for network in NETWORKS if pretrained_weights(network) == name],
        }
        for name, weights in WEIGHTS.items()
    }
    named = {weights.file for weights in WEIGHTS.values()}
    return known, sorted(path for name, path in paths.items() if name not in named)


def describe_hub() -> dict[str, Any]:
    """The backbones in the hub's cache, as JSON values."""
    from domainwise.nets.hub import cached_names, licence

    return {
        name: {
            "path": str(path),
            "commit": path.name,
            "bytes": sum(file.stat().st_size for file in path.glob("*.safetensors")),
            "licence": licence(name) or "not stated",
        }
        for name, path in cached_names()
    }


@app.command(epilog=GET_EXAMPLES)
def get(
    name: Annotated[str, typer.Argument(help="See: domainwise weights list; or hf:NAME, timm:NAME.")],
    data_root: options.DataRoot = None,
) -> None:
    """Download published weights into the data root: resumes an interrupted download and verifies the checksum."""
    from domainwise.core.files import writable_folder
    from domainwise.data.catalogue import data_root as find_root
    from domainwise.data.sources.downloads import Download, fetch
    from domainwise.nets import hub
    from domainwise.nets.weights import FOLDER, WEIGHTS
    from domainwise.protocol.network_names import HubName, is_hub

    if is_hub(name):
        hub_name = HubName.parse(name)
        if hub_name.folder is not None:
            raise UserError(f"{name} is a folder here already: use it as it is")
        say(f"{name} is in {hub.download(hub_name)}")
        return
    if name not in WEIGHTS:
        raise unknown("weights", name, WEIGHTS)
    weights = WEIGHTS[name]
    root = files.expanded(data_root) if data_root else find_root()
    if not weights.sha256:
        where = f"it from {weights.page}" if weights.page else "yours"
        raise UserError(f"{name} is published without a checksum: put {where} into {root} as {weights.file}")
    writable_folder(root, argument="data_root")
    download = Download(weights.url, f"sha256:{weights.sha256}", f"{FOLDER}/{weights.file}", weights.size)
    with download_progress() as progress:
        file = fetch(download, root, progress(download))
    say(f"{name} is in {file}")
