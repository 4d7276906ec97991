"""`domainwise cam`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from domainwise.cli.common import DataRoot, Device, Json, console, errors_console, print_json, say

if TYPE_CHECKING:
    from domainwise.analysis.attention import Comparison

EXAMPLES = (
    "Examples:  [bold]domainwise cam runs/demo --out heatmaps.pdf[/]   ·   "
    "[bold]domainwise cam runs/demo --test-domain scene3 --per-class 2 --json[/]   ·   "
    "[bold]domainwise cam runs/erm/1f0c0ffee0000000 --images cow.jpg --images camel.jpg[/]"
)

Runs = Annotated[list[Path], typer.Argument(help="Folders of runs or trainings, or of a sweep: one run per method.")]
OfDataset = Annotated[str | None, typer.Option("--dataset", help="Of a sweep with several datasets, this one.")]
OfDomain = Annotated[str | None, typer.Option("--test-domain", help="Of a sweep, the runs that leave this one out.")]
OfTrial = Annotated[int | None, typer.Option("--trial", help="Of a sweep, the runs of this trial.")]


def cam(
    runs: Runs,
    images: Annotated[
        list[Path] | None, typer.Option(help="Image file; repeat for several (default: from the unseen domain).")
    ] = None,
    per_class: Annotated[int, typer.Option(help="Images of each class, where no files are given.", min=1)] = 1,
    limit: Annotated[int, typer.Option(help="Rows of the picture at most.", min=1)] = 12,
    layer: Annotated[str | None, typer.Option(help="Module whose maps are used (default: the last with maps).")] = None,
    method: Annotated[
        str, typer.Option(help="grad-cam, or hires-cam: for networks that flatten their last maps, as small-cnn.")
    ] = "grad-cam",
    out: Annotated[Path, typer.Option(help="The picture: .png, .pdf or .svg.")] = Path("heatmaps.png"),
    dataset: OfDataset = None,
    test_domain: OfDomain = None,
    trial: OfTrial = None,
    data_root: DataRoot = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Where do models look? Grad-CAM side by side, on the same images of a domain that none of them saw.

    Of a sweep, each method's run is the one that training-domain validation prefers, as it was after its last step.
    Where the object's outline is known (BackgroundDigits), also the share of the heat that falls on it.
    """
    from domainwise.analysis import attention
    from domainwise.analysis.choose import Wanted, chosen_folders
    from domainwise.data.images.read import read_images
    from domainwise.report.canvas import save, writable_picture
    from domainwise.report.heatmaps import heatmap_grid

    writable_picture(out)
    folders = chosen_folders(runs, Wanted(dataset, test_domain, trial))
    models = attention.restore_all(folders, data_root, device)
    if images:
        own = read_images(images[:limit], models[0].environments.shape)
        comparison = attention.compare_on_images(models, own, layer, method)
    else:
        environments = models[0].environments
        rows = attention.sample_rows(environments, attention.common_unseen(models), per_class, limit)
        comparison = attention.compare_attention(models, rows, layer, method)
    save(heatmap_grid(comparison), out)
    if as_json:
        print_json(_as_json(comparison) | {"picture": str(out)})
        return
    if comparison.area is not None:
        _print_shares(comparison)
    say(f"Picture: {out}")


def _print_shares(comparison: "Comparison") -> None:
    even, domain_size = 100 * (comparison.area or 0), max(sight.images for sight in comparison.sights)
    say(
        f"Share of the heat on the object, per cent, mean ± standard error over the images of {comparison.unseen} "
        f"of {comparison.dataset} (unseen); an even heatmap would have {even:.1f}:",
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("method", "on the object", "images"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for sight in comparison.sights:
        table.add_row(escape(sight.name), str(sight.inside or "no heat"), str(sight.inside.n if sight.inside else 0))
    console.print(table)
    if any((sight.inside.n if sight.inside else 0) < 0.9 * sight.images for sight in comparison.sights):
        say(
            f"note: of {domain_size} images, those without any heat are left out; for a network that flattens its last "
            "maps, as small-cnn, use --method hires-cam",
            errors_console,
        )


def _as_json(comparison: "Comparison") -> dict[str, Any]:
    labels = None if comparison.labels is None else [comparison.classes[c] for c in comparison.labels.tolist()]
    return {
        "dataset": comparison.dataset,
        "unseen": comparison.unseen,
        "method": comparison.method,
        "labels": labels,
        "object_area": comparison.area,
        "runs": [
            {
                "run": sight.run.id,
                "method": sight.name,
                "layers": list(sight.layers),
                "predicted": [comparison.classes[c] for c in sight.attention.predicted.tolist()],
                "heat_on_object": None
                if sight.inside is None
                else {"mean": sight.inside.mean, "error": sight.inside.error, "images": sight.inside.n},
                "images_judged": sight.images,
            }
            for sight in comparison.sights
        ],
    }
