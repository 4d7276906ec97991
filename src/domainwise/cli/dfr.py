"""`domainwise dfr`."""

from pathlib import Path
from typing import Annotated

import typer

from domainwise.cli import options
from domainwise.cli.output import console, print_json, say
from domainwise.cli.reading_flags import with_reading_flags
from domainwise.core.table import Table
from domainwise.protocol.reading import PLAIN, Reading

EXAMPLES = "Example:  [bold]domainwise dfr runs/train --data photos --out reweighted[/]"


@with_reading_flags
def dfr(
    model: options.ModelFolder,
    data: Annotated[str, typer.Option(help="Labelled images with some that the model was not trained on.")],
    out: Annotated[Path, typer.Option(help="Folder of the new model.")],
    skip_bad: options.SkipBad = False,
    reading: Reading = PLAIN,
    seed: options.Seed = 0,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Train a model's last layer anew on held-out images, balanced over the classes of every domain (DFR).

    Images that the model was trained on are left out, and so are domains that it was not trained on. Features that hold
    only where a class is frequent then no longer help; the accuracy of rare classes in a domain rises.
    """
    from domainwise.cli.data_options import labelled_data
    from domainwise.core.files import writable_folder
    from domainwise.models.dfr import dfr as retrain
    from domainwise.models.folder import load_model

    writable_folder(out, argument="out")
    loaded = load_model(model, device=device)
    made = retrain(loaded, labelled_data(loaded, data, skip_bad, reading, data_root), seed=seed)
    made.save(out)
    done = made.card.training["last_layer"]
    if as_json:
        print_json({"model": str(out), "weights": made.weights, **done})
        return
    rows = [
        (one["domain"], one["class"], str(one["samples"]), f"{100 * one['before']:.1f}", f"{100 * one['after']:.1f}")
        for one in done["groups"]
    ]
    headings = ("domain", "class", "samples", "before", "after")
    console.print(Table(headings, rows, f"{out}: {done['words']}", CAPTION, labels=2))
    if done["left_out"]:
        say(f"left out, with a single sample: {', '.join(done['left_out'])}")
    (worst, now), (mean, then) = done["worst_group"], done["mean_over_groups"]
    say(f"worst group {100 * worst:.1f} -> {100 * now:.1f} %, mean over groups {100 * mean:.1f} -> {100 * then:.1f} %")
    say(f"{out}: {made.weights}")


CAPTION = (
    "Accuracy of held-out samples, per cent; after: by a layer that was fitted to the other half of them. "
    "The new model is not calibrated."
)
