"""`domainwise data cache list`, `domainwise data cache clear`."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, print_json, say
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.core.table import Table

if TYPE_CHECKING:
    from domainwise.data.images.cache_folder import CachedImages

LIST_EXAMPLES = "Examples:  [bold]domainwise data cache list[/]   ·   [bold]domainwise data cache list --json[/]"
CLEAR_EXAMPLES = (
    "Examples:  [bold]domainwise data cache clear PACS[/]   ·   [bold]domainwise data cache clear --yes[/]   ·   "
    "[bold]domainwise data cache clear --cache ~/data/cache[/]"
)

app = typer.Typer(help="Stored decoded images: list them, clear them.", no_args_is_help=True)


@app.command("list", epilog=LIST_EXAMPLES)
def list_cached(data_root: options.DataRoot = None, as_json: options.Json = False) -> None:
    """Show stored decoded images: dataset, image sizes, disk space, last use."""
    from domainwise.data.catalogue import data_root as find_root
    from domainwise.data.images.cache_folder import cache_root, cached_images

    root, old = cache_root(), find_root(data_root) / "cache"
    cached = cached_images(root)
    unused = cached_images(old) if old.absolute() != root.absolute() else []
    if as_json:
        facts = {"folder": str(root), "caches": [_as_json(one) for one in cached]}
        print_json(facts | {"unused": {"folder": str(old), "bytes": sum(one.bytes for one in unused)}})
        return
    rows = [(one.name, one.source or "?", _pixels(one), f"{one.bytes / 1e6:,.0f}", _day(one.used)) for one in cached]
    if cached:
        headings = ("name", "of", "pixels", "MB", "last used")
        console.print(Table(headings, rows, f"Decoded images in {root}", labels=2))
    total = f"{_megabytes(cached)} of decoded images in {root}"
    say(f"{total}; domainwise data cache clear [NAME] removes them" if cached else f"no decoded images in {root}")
    if unused:
        say(
            f"{_megabytes(unused)} in {old} are of an earlier version and not used any more; "
            f"remove them: domainwise data cache clear --cache {old}"
        )


@app.command(epilog=CLEAR_EXAMPLES)
def clear(
    name: Annotated[
        str | None, typer.Argument(help="A dataset, a folder of images, or a name of the list (default: all).")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove decoded images: a later run decodes them again. Nothing else in that folder is touched."""
    from domainwise.data.images.cache_folder import cache_root, cached_images, chosen

    root = cache_root()
    cached = chosen(cached_images(root), name)
    if not cached:
        say(f"no decoded images in {root}")
        return
    for one in cached:
        say(f"{one.folder}: {one.bytes / 1e6:,.0f} MB{f', of {one.source}' if one.source else ''}")
    if not yes and not _agreed(f"Remove {_megabytes(cached)} of decoded images?"):
        raise typer.Exit(1)
    for one in cached:
        one.clear()
    say(f"removed {_megabytes(cached)} ({counted(len(cached), 'folder')})")


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UserError("nothing was removed: there is no terminal to ask at", argument="yes")
    return typer.confirm(question)


def _megabytes(cached: "list[CachedImages]") -> str:
    return f"{sum(one.bytes for one in cached) / 1e6:,.0f} MB"


def _as_json(one: "CachedImages") -> dict[str, object]:
    used = datetime.fromtimestamp(one.used, UTC).isoformat(timespec="seconds")
    facts = {"name": one.name, "of": one.source, "sizes": one.sizes, "largest_short_sides": one.limits}
    return facts | {"bytes": one.bytes, "last_used": used}


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).date().isoformat()


def _pixels(one: "CachedImages") -> str:
    """The sizes of squares, and the limits of images at their own sizes."""
    return ", ".join([*map(str, one.sizes), *(f"up to {limit}" for limit in one.limits)])
