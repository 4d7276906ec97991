"""`domainwise cam`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli import options
from domainwise.cli.filter_flags import with_run_filter
from domainwise.cli.output import console, errors_console, print_json, say

if TYPE_CHECKING:
    from domainwise.analysis.attention import AttentionComparison
    from domainwise.analysis.run_choice import RunFilter

EXAMPLES = (
    "Examples:  [bold]domainwise cam runs/demo --out heatmaps.pdf[/]   ·   "
    "[bold]domainwise cam runs/demo --test-domain scene3 --per-class 2 --json[/]   ·   "
    "[bold]domainwise cam runs/erm/1f0c0ffee0000000 --images cow.jpg --images camel.jpg[/]"
)


@with_run_filter
def cam(
    runs: options.RunFolders,
    images: Annotated[
        list[Path] | None, typer.Option(help="Image file; repeat for several (default: from the unseen domain).")
    ] = None,
    per_class: Annotated[int, typer.Option(help="Images per class, if no files are given.", min=1)] = 1,
    limit: Annotated[int, typer.Option(help="Largest number of rows of the picture.", min=1)] = 12,
    layer: Annotated[str | None, typer.Option(help="Module whose maps are used (default: the last with maps).")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="grad-cam, hires-cam, or rollout for vision transformers (default: hires-cam for networks that "
            "flatten their last maps, as small-cnn; else grad-cam)."
        ),
    ] = None,
    out: options.Picture = Path("heatmaps.png"),
    *,
    run_filter: "RunFilter",
    data_root: options.DataRoot = None,
    device: options.Device = "cpu",
    as_json: options.Json = False,
) -> None:
    """Where do models look? Grad-CAM side by side, on the same images of a domain that none of them saw.

    From a sweep, each method has the run and the step that training-domain validation selects. If the outline of the
    object is known (BackgroundDigits), the output has the share of the heat on the object.
    """
    from domainwise.analysis import attention
    from domainwise.analysis.run_choice import run_folders
    from domainwise.data.images.read import read_images
    from domainwise.reports.pictures import heatmap_grid
    from domainwise.reports.style import save, writable_picture

    writable_picture(out)
    folders = run_folders(runs, run_filter)
    models = attention.restore_all(folders, data_root, device)
    if images:
        pixels = read_images(images[:limit], models[0].environments.shape, models[0].environments.window)
        comparison = attention.compare_on_images(models, pixels, layer, method)
    else:
        environments = models[0].environments
        rows = attention.sample_rows(environments, attention.common_unseen(models), per_class, limit)
        comparison = attention.compare_attention(models, rows, layer, method)
    save(heatmap_grid(comparison), out)
    if as_json:
        weights = {trained.run.id: trained.weights for trained in models}
        print_json(_as_json(comparison) | {"weights": weights, "picture": str(out)})
        return
    for trained in models:
        say(f"{trained.run}: {trained.weights}", errors_console)
    if comparison.area is not None:
        _print_shares(comparison)
    say(f"Picture: {out}")


def _print_shares(comparison: "AttentionComparison") -> None:
    from domainwise.core.table import Table

    even, domain_size = 100 * (comparison.area or 0), max(model.images for model in comparison.models)
    say(
        f"Share of the heat on the object, per cent, mean ± standard error over the images of {comparison.unseen} "
        f"of {comparison.dataset} (unseen); an even heatmap would have {even:.1f}:",
    )
    with_heat = [model.inside.n if model.inside else 0 for model in comparison.models]
    rows = [
        [str(model.method), str(model.inside or "no heat"), str(count)]
        for model, count in zip(comparison.models, with_heat, strict=True)
    ]
    console.print(Table(("method", "on the object", "images"), rows))
    if any(count < 0.9 * model.images for model, count in zip(comparison.models, with_heat, strict=True)):
        say(
            f"note: of {domain_size} images, those without any heat are left out ({comparison.method})",
            errors_console,
        )


def _as_json(comparison: "AttentionComparison") -> dict[str, Any]:
    labels = None if comparison.labels is None else [comparison.classes[c] for c in comparison.labels.tolist()]
    return {
        "dataset": comparison.dataset,
        "unseen": comparison.unseen,
        "method": comparison.method,
        "labels": labels,
        "object_area": comparison.area,
        "runs": [
            {
                "run": model.run.id,
                "method": str(model.method),
                "layers": list(model.layers),
                "predicted": [comparison.classes[c] for c in model.attention.predicted.tolist()],
                "heat_on_object": None
                if model.inside is None
                else {"mean": model.inside.mean, "error": model.inside.error, "images": model.inside.n},
                "images_judged": model.images,
            }
            for model in comparison.models
        ],
    }
