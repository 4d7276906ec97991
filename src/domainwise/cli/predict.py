"""`domainwise predict` and `domainwise evaluate`."""

import csv
import io
import json
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import TextColumn
from rich.table import Table

from domainwise.cli import options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import progress_bar
from domainwise.core.errors import UserError

log = logging.getLogger(__name__)

EXAMPLES = (
    "Examples:  [bold]domainwise predict runs/train photo.jpg[/]"
    "   ·   [bold]domainwise predict runs/train new_camera/ 'more/*.png' --csv predictions.csv[/]"
)
EVALUATE_EXAMPLES = (
    "Examples:  [bold]domainwise evaluate runs/train --data photos/[/]"
    "   ·   [bold]domainwise evaluate runs/train --data BackgroundDigits --json[/]"
)

CLASSES_SHOWN = 10
"""More do not fit a terminal; --json has all."""


def predict(
    model: options.ModelFolder,
    images: options.Images,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write file, class and all probabilities here instead.")
    ] = None,
    domain: Annotated[str | None, typer.Option(help="The training domain all images come from (MTL uses it).")] = None,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line and image.")] = False,
) -> None:
    """Predict the class of images: one tab-separated line per image with file, class and probability.

    An image that cannot be read is named on standard error and left out; the exit status is then 1, or 2 if none can.
    """
    from domainwise.core import files
    from domainwise.core.phrasing import counted
    from domainwise.models.folder import load_model
    from domainwise.models.stream import find_images, predictions, read_batches

    loaded = load_model(model, device=device)
    paths = find_images(images)
    log.info("%s: %s", model, loaded.weights)
    if csv_file is not None:
        if csv_file.is_dir():
            raise UserError(f"--csv {csv_file} is a folder: name a file")
        files.writable_folder(csv_file.parent, argument="csv")
    if loaded.batch_dependent:
        errors_console.print(
            f"predictions of {loaded.card.algorithm} depend on the {loaded.batch_size} images they are made with: "
            "give images of one domain at a time"
        )
    silent = console.is_terminal and csv_file is None  # the lines show progress
    rows = io.StringIO(newline="")
    table = csv.writer(rows, lineterminator="\n")
    table.writerow(["file", "class", "confidence", *loaded.classes])
    unreadable = 0
    with progress_bar(TextColumn("{task.completed}/{task.total}"), silent=silent) as bar:
        bar.start()
        task = bar.add_task("predicting", total=len(paths))
        for batch in read_batches(paths, loaded):
            for line in batch.unreadable:
                log.debug(line)
                say(line, errors_console)
            unreadable += len(batch.unreadable)
            for one in predictions(loaded, batch, domain):
                if csv_file is not None:
                    table.writerow(
                        [one.file, one.label, f"{one.confidence:.6g}", *(f"{p:.6g}" for p in one.probabilities)]
                    )
                elif as_json:
                    probabilities = dict(zip(loaded.classes, one.probabilities, strict=True))
                    row = {"file": str(one.file), "class": one.label, "probabilities": probabilities}
                    console.file.write(json.dumps(row) + "\n")
                else:
                    console.file.write(f"{_printable(one.file)}\t{one.label}\t{one.confidence:.4f}\n")
            bar.advance(task, len(batch.files) + len(batch.unreadable))
    if csv_file is not None:
        with files.atomic(csv_file) as file:
            file.write(rows.getvalue().encode(errors="surrogateescape"))
        say(f"{counted(len(paths) - unreadable, 'prediction')}: {csv_file}")
    if unreadable:
        nothing = unreadable == len(paths)
        rest = "there was nothing to predict" if nothing else "the rest were predicted"
        errors_console.print(f"{unreadable} of {counted(len(paths), 'image')} could not be read; {rest}")
        raise typer.Exit(2 if nothing else 1)


def _printable(file: Path) -> str:
    """The name with replacement characters for bytes that are not UTF-8, as old archives leave them."""
    return str(file).encode(errors="surrogateescape").decode(errors="replace")


def evaluate(
    model: options.ModelFolder,
    data: Annotated[str, typer.Option(help="Labelled images DIR/<domain>/<class>/, or a dataset's name.")],
    skip_bad: options.SkipBad = False,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Evaluate a model on labelled domains: accuracy per domain and class, and the worst of each."""
    from domainwise.data.find import find_dataset
    from domainwise.models.folder import load_model

    loaded = load_model(model, device=device)
    if loaded.preprocessing.vectors:
        raise UserError(
            f"this model reads rows of {loaded.preprocessing.shape[0]} numbers, not images: use it from Python"
        )
    environments = find_dataset(data, skip_bad=skip_bad).load(data_root, loaded.preprocessing.shape[-1])
    result = loaded.evaluate(environments)
    if as_json:
        print_json(result.as_json())
        return
    title = escape(f"Accuracy of {model} on {environments.name}, per cent")
    made = f"{loaded.card.algorithm}, {loaded.card.network}, trained on {', '.join(loaded.domains)}"
    caption = f"{made}; {loaded.weights}"
    table = Table(title=title, caption=escape(caption))
    table.add_column("domain", overflow="fold")
    shown = environments.classes if len(environments.classes) <= CLASSES_SHOWN else ()
    for heading in ("images", "all", *map(escape, shown)):
        table.add_column(heading, justify="right")
    for domain, score in result.domains.items():
        cells = [f"{100 * score.classes[name]:.1f}" if name in score.classes else "" for name in shown]
        seen = " (trained on)" if score.trained_on else ""
        table.add_row(escape(domain) + seen, str(score.samples), f"{100 * score.accuracy:.1f}", *cells)
    console.print(table)
    if any(score.trained_on for score in result.domains.values()):
        say("(trained on): these may include the very images the model was trained on.")
    say(str(result))
