"""`domainwise shift`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli import options
from domainwise.cli.output import console, print_json, say
from domainwise.cli.progress import activity
from domainwise.core.phrasing import counted

if TYPE_CHECKING:
    from domainwise.analysis.shift import DatasetShift
    from domainwise.core.table import Table

EXAMPLES = (
    "Examples:  [bold]domainwise shift ColoredMNIST-embedded[/]   ·   "
    "[bold]domainwise shift RotatedMNIST --test-domain 0 --test-domain 75 --out shift.pdf[/]   ·   "
    "[bold]domainwise shift PACS --network resnet18-scratch --image-size 64 --trials 3 --json[/]"
)


def shift(
    dataset: Annotated[str, typer.Argument(help="A dataset's name (see: domainwise list), or a folder of images.")],
    test_domain: Annotated[
        list[str] | None, typer.Option(help="Unseen domain; repeat for several (default: each in turn).")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Network for the features (default: by the data).")] = None,
    weights: options.Weights = "",
    image_size: Annotated[int | None, typer.Option(help="Height and width of images that can be resized.")] = None,
    images: Annotated[int, typer.Option(help="Images per side, at most.", min=64)] = 20_000,
    trials: Annotated[int, typer.Option(help="Repetitions with other weights and samples.", min=1)] = 1,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="OoD-Bench's fixed thresholds instead of calibrated ones.")
    ] = False,
    out: options.OptionalPicture = None,
    skip_bad: options.SkipBad = False,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Which shift is it? Diversity (the unseen domain looks different) or correlation (labels go with other looks).

    Estimates both between each unseen domain and all others as OoD-Bench does, with an i.i.d. split as control.
    """
    from domainwise.analysis.shift import ShiftSettings, default_network, measure_shift
    from domainwise.data.find import find_dataset
    from domainwise.nets.weights import planned
    from domainwise.reports.pictures import shift_figure
    from domainwise.reports.style import save, writable_picture

    if out is not None:
        writable_picture(out)
    data = find_dataset(dataset, skip_bad=skip_bad)
    unseen = [data.domain(key) for key in test_domain] if test_domain else list(data.testable)
    name = network or default_network(data)
    settings = ShiftSettings(name, planned(name, weights, data_root), device, images, data_root)
    environments = data.load(data_root, image_size)
    with activity("learning features") as now:
        measured = measure_shift(
            environments,
            unseen,
            settings,
            trials=range(trials),
            calibrated=not fixed,
            progress=now,
        )
    if out is not None:
        save(shift_figure(measured), out)
    if as_json:
        print_json(_as_json(measured) | {"picture": str(out) if out else None})
        return
    console.print(_table(measured))
    say(measured.sentence)
    if out is not None:
        say(f"Picture: {out}")


def _table(measured: "DatasetShift") -> "Table":
    from domainwise.core.table import Table

    kinds = ("diversity", "correlation")
    rows = []
    for unseen in measured.unseen:
        shifts = [shift for shift in measured.shifts if shift.unseen == unseen]
        accuracy = sum(shift.sides.discriminator_accuracy for shift in shifts) / len(shifts)
        values = [f"{measured.mean(kind, unseen):.3f}" for kind in kinds]
        rows.append([unseen, *values, f"{100 * accuracy:.0f} %", str(len(shifts[0].sides.test))])
    rows.append(["mean", *[_spread(measured.values(kind)) for kind in kinds], "", ""])
    rows.append(["i.i.d. control", *[f"{measured.mean(f'control_{kind}'):.3f}" for kind in kinds], "", ""])
    thresholds = "calibrated on the control" if measured.calibrated else "fixed"
    seeds = counted(len(measured.values("diversity")), "seed")
    headings = ("unseen", *kinds, "told apart", "measured per side")
    return Table(headings, rows, caption=f"{measured.network}, {seeds}, thresholds {thresholds}")


def _spread(values: list[float]) -> str:
    from domainwise.protocol.statistics import estimate

    over_seeds = estimate(values)
    return f"{over_seeds.mean:.3f}" + ("" if over_seeds.error is None else f" ± {over_seeds.error:.3f}")


def _as_json(measured: "DatasetShift") -> dict[str, Any]:
    return {
        "dataset": measured.dataset,
        "network": measured.network,
        "calibrated": measured.calibrated,
        "diversity": measured.mean("diversity"),
        "correlation": measured.mean("correlation"),
        "control": {kind: measured.mean(f"control_{kind}") for kind in ("diversity", "correlation")},
        "shifts": [
            {
                "unseen": shift.unseen,
                "seed": shift.seed,
                "diversity": shift.diversity,
                "correlation": shift.correlation,
                "thresholds": asdict(shift.thresholds),
                "told_apart": shift.sides.discriminator_accuracy,
                "images_per_side": len(shift.sides.test),
            }
            for shift in measured.shifts
        ],
        "sentence": measured.sentence,
    }
