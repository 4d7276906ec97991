"""`domainwise drift`."""

import math
from dataclasses import replace
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.reading_flags import with_path_flags
from domainwise.core.errors import UserError
from domainwise.protocol.reading import PLAIN, Reading

EXAMPLES = (
    "Examples:  [bold]domainwise drift runs/train new_camera/[/]"
    "   ·   [bold]domainwise drift runs/train 'today/*.jpg' --fail-above 0.05 --json[/]"
)


@with_path_flags
def drift(
    model: options.ModelFolder,
    images: options.Images,
    reading: Reading = PLAIN,
    fail_above: Annotated[
        float | None, typer.Option(help="Exit with status 1 if the score is above this limit.")
    ] = None,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Measure how far new, unlabelled images are from the training domains, in the model's features.

    The kernel two-sample test compares them with each training domain: MMD^2 (about 0 if nothing differs) and its
    p-value. The score, MMD^2 to the nearest domain on a scale that is fixed for the model, can be plotted over time.
    The exit status is 1 if the score is above --fail-above, or if an image cannot be read, which is then named,
    and 2 after a mistake, when nothing was measured.
    """
    import torch

    from domainwise.core.seeds import permutation
    from domainwise.models import drift as drifting
    from domainwise.models.folder import load_model
    from domainwise.models.stream import find_images, read_batches

    if fail_above is not None and not (math.isfinite(fail_above) and fail_above >= 0):
        raise UserError(f"--fail-above {fail_above}: give a score, which is at least 0 and at most 2")
    loaded = load_model(model, device=device)
    files = find_images(images, reading)
    chosen = permutation(len(files), "drift files", seed)[: drifting.LARGEST].sort().values.tolist()
    batches = list(read_batches([files[i] for i in chosen], loaded))
    unreadable = [line for batch in batches for line in batch.unreadable]
    for line in unreadable:
        say(line, errors_console)
    result = drifting.drift(loaded, torch.cat([batch.images for batch in batches]), seed=seed)
    above = fail_above is not None and result.score > fail_above
    if as_json:
        alarm = {} if fail_above is None else {"fail_above": fail_above, "above": above}
        print_json({**result.as_json(), "found": len(files), **alarm})
    else:
        console.print(replace(result.as_table(), title=f"Distance to what {model} was trained on", notes=()))
        if result.samples < len(files):
            say(f"{result.samples} of {len(files)} images, drawn at random, were compared.")
        say(result.sentence)
        say(result.score_sentence)
        say(f"Features: {loaded.weights}.")
    if above:
        say(f"the score {result.score:.4f} is above {fail_above:g}", errors_console)
    if unreadable or above:
        raise typer.Exit(1)
