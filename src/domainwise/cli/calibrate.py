"""`domainwise calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import print_json, say
from domainwise.cli.reading_flags import with_reading_flags
from domainwise.protocol.reading import PLAIN, Reading

EXAMPLES = (
    "Examples:  [bold]domainwise calibrate runs/train --sweep runs/sweep[/]"
    "   ·   [bold]domainwise calibrate runs/train --data photos[/]"
)


@with_reading_flags
def calibrate(
    model: options.ModelFolder,
    sweep: Annotated[
        Path | None, typer.Option(help="Sweep with the model's settings that left each domain out.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Labelled images DIR/<domain>/<class>/, a table of files, or a dataset.")
    ] = None,
    skip_bad: options.SkipBad = False,
    reading: Reading = PLAIN,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Calibrate a model's probabilities by a temperature; predict can then abstain and give sets of classes.

    A sweep gives the predictions of models for the domain that each left out. With labelled images, domains that the
    model has not seen are used; without any, held-out images of its training domains.
    """
    from dataclasses import asdict

    from domainwise.cli.data_options import labelled_data
    from domainwise.core.files import writable_folder
    from domainwise.models.calibrate import calibrate as fit_temperature
    from domainwise.models.folder import load_model

    loaded = load_model(model, device=device)
    writable_folder(model, argument="model")
    labelled = None if data is None else labelled_data(loaded, data, skip_bad, reading, data_root)
    made = fit_temperature(loaded, sweep=sweep, data=labelled, device=device, data_root=data_root)
    made.save(model)
    assert made.card.calibration is not None
    if as_json:
        print_json({"model": str(model), "weights": made.weights, **asdict(made.card.calibration)})
    else:
        say(f"{model}: {made.calibration}")
        say(f"{model}: {made.weights}")
