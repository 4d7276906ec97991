"""`domainwise interpolate`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, print_json, say
from domainwise.core.errors import UserError

EXAMPLES = (
    "Examples:  [bold]domainwise interpolate runs/sweep/1f0c0ffee0000000 --figure line.png[/]"
    "   ·   [bold]domainwise interpolate runs/train --alphas 0,0.25,0.5,0.75,1 --out model[/]"
)


def interpolate(
    trained: Annotated[Path, typer.Argument(help="Folder of a run (OUT/<run id>), or of a model that knows its run.")],
    alphas: Annotated[
        str, typer.Option(help="Points from 0 (start) to 1 (end), separated by commas (default: 0, 0.1, ... 1).")
    ] = "",
    save: options.Save = "auto",
    alpha: Annotated[
        float | None, typer.Option(help="The point of the model to write (default: by training-domain validation).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the model at the chosen point.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Also a picture: .png, .pdf or .svg.")] = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Evaluate weights on the line between the start and the end of a training, per domain.

    The start is rebuilt from the run and verified by the loss of its first step. Points in between can be better on
    unseen domains (WiSE-FT); --out writes the one that training-domain validation selects.
    """
    from domainwise.core import files
    from domainwise.models.interpolate import ALPHAS
    from domainwise.models.interpolate import interpolate as walk

    if alpha is not None and out is None:
        raise UserError("--alpha names the point of a model: name its folder, too", argument="out")
    if figure is not None:
        from domainwise.reports.style import check_format

        check_format(figure, "figure")
        files.writable_file(figure, argument="figure")
    if out is not None:
        files.writable_folder(out)
    values = [_number(text) for text in options.parse_names(alphas)] or list(ALPHAS)
    if alpha is not None and alpha not in values:
        values.append(alpha)
    result = walk(trained, alphas=values, save=save, device=device, data_root=data_root)
    if figure is not None:
        from domainwise.reports.interpolation import interpolation_figure
        from domainwise.reports.style import save as save_figure

        save_figure(interpolation_figure(result), figure)
    model = None
    if out is not None:
        model = result.model(alpha, device)
        model.save(out)
    if as_json:
        written = {"model": out, "figure": figure}
        print_json(result.as_json() | {name: path and str(path) for name, path in written.items()})
        return
    console.print(result)
    say(result.sentence)
    if model is not None:
        say(f"Model: {out}; {model.weights}")
    if figure is not None:
        say(f"Figure: {figure}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--alphas {text}: give numbers from 0 to 1 with commas between") from None
