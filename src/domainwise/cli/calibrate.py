"""`domainwise calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import print_json, say

EXAMPLES = (
    "Examples:  [bold]domainwise calibrate runs/train --sweep runs/sweep[/]"
    "   ·   [bold]domainwise calibrate runs/train --data photos[/]"
)


def calibrate(
    model: options.ModelFolder,
    sweep: Annotated[
        Path | None, typer.Option(help="Sweep with the model's settings that left each domain out.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Labelled images DIR/<domain>/<class>/, or a dataset's name.")
    ] = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Calibrate a model's probabilities by a temperature; predict can then abstain and give sets of classes.

    A sweep gives the predictions of models for the domain that each left out. With labelled images, domains that the
    model has not seen are used; without any, held-out images of its training domains.
    """
    from dataclasses import asdict

    from domainwise.models.calibrate import calibrate as fit_temperature
    from domainwise.models.folder import load_model

    made = fit_temperature(load_model(model, device=device), sweep=sweep, data=data, device=device, data_root=data_root)
    made.save(model)
    assert made.card.calibration is not None
    if as_json:
        print_json({"model": str(model), **asdict(made.card.calibration)})
    else:
        say(f"{model}: {made.calibration}")
