"""`domainwise predict` and `domainwise evaluate`."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TextColumn

from domainwise.cli import complete, options
from domainwise.cli.output import console, errors_console, print_json, say
from domainwise.cli.progress import progress_bar
from domainwise.cli.reading_flags import with_path_flags, with_reading_flags
from domainwise.core.errors import UserError
from domainwise.core.printing import printable
from domainwise.core.spreadsheet import comma_separated_rows
from domainwise.core.table import Table
from domainwise.protocol.reading import PLAIN, Reading

if TYPE_CHECKING:
    from domainwise.models.evaluation import Confusion
    from domainwise.models.model import Model

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
COMMONEST = 3
"""Confusions that are named."""


Adapt = Annotated[
    str | None,
    typer.Option(
        help="Adapt to the images, all of one domain: t3a or tent.", autocompletion=complete.among("t3a", "tent")
    ),
]
AdaptKeep = Annotated[int | None, typer.Option(help="t3a: confident images kept per class, -1 for all (default: 100).")]
AdaptLr = Annotated[float | None, typer.Option(help="tent: step size (default: 0.001).")]


def adapted(model: "Model", method: str | None, keep: int | None, lr: float | None) -> "Model":
    """The model, adapting to its images if there is a method; says what that assumes."""
    from domainwise.models.adapt import SETTINGS

    given = {name: value for name, value in {"keep": keep, "lr": lr}.items() if value is not None}
    if method is None:
        for known, name in SETTINGS.items():
            if name in given:
                raise UserError(f"nothing adapts to the images: add --adapt {known}", argument=f"adapt_{name}")
        return model
    made = model.adapt(method, **given)
    say(f"warning: {made.assumes}", errors_console)
    return made


@with_path_flags
def predict(
    model: options.ModelFolder,
    images: options.Images,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write file, class and all probabilities to this file instead.")
    ] = None,
    reading: Reading = PLAIN,
    domain: Annotated[str | None, typer.Option(help="Training domain of all images (used by MTL).")] = None,
    adapt: Adapt = None,
    adapt_keep: AdaptKeep = None,
    adapt_lr: AdaptLr = None,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line and image.")] = False,
    abstain: options.Abstain = "",
    sets: options.Sets = "",
) -> None:
    """Predict the class of images: one tab-separated line per image with file, class and probability.

    Tabs and line breaks in names are escaped. Standard error says which weights predicted, and names images that cannot
    be read. These are left out; the exit status is then 1, or 2 if none can.
    """
    from domainwise.core import files
    from domainwise.core.phrasing import counted
    from domainwise.data.images.remote import shown
    from domainwise.models.decisions import UNKNOWN, DecisionRule
    from domainwise.models.folder import load_model
    from domainwise.models.stream import find_images, predictions, read_batches

    loaded = load_model(model, device=device)
    paths = find_images(images, reading)
    log.info("%s: %s", model, loaded.weights)
    if csv_file is not None:
        files.writable_file(csv_file, argument="csv")
    loaded = adapted(loaded, adapt, adapt_keep, adapt_lr)
    if adapt is None and loaded.batch_dependent:
        errors_console.print(
            f"predictions of {loaded.card.algorithm} depend on the {loaded.batch_size} images they are made with: "
            "give images of one domain at a time"
        )
    rule = DecisionRule.of(loaded, abstain, sets)
    if rule.warning:
        say(f"warning: {rule.warning}", errors_console)
    silent = console.is_terminal and csv_file is None  # the lines show progress
    rows: list[list[str]] = []
    unreadable, reason = 0, ""
    with progress_bar(TextColumn("{task.completed}/{task.total}"), silent=silent) as bar:
        bar.start()
        task = bar.add_task("predicting", total=len(paths))
        for batch in read_batches(paths, loaded):
            for line in batch.unreadable:
                log.debug(line)
                reason = line
                if len(paths) > 1:
                    say(line, errors_console)
            unreadable += len(batch.unreadable)
            for image, p in predictions(loaded, batch, domain):
                decision = rule.decide(p)
                label = UNKNOWN if decision.label is None else decision.label
                names = decision.classes
                if csv_file is not None:
                    numbers = (f"{number:.6g}" for number in (decision.confidence, *p))
                    extra = ["no" if decision.label is None else "yes"] if abstain else []
                    rows.append(
                        [shown(image), label, *numbers, *extra, *([] if names is None else [" | ".join(names)])]
                    )
                elif as_json:
                    probabilities = dict(zip(loaded.classes, p, strict=True))
                    row: dict[str, Any] = {
                        "file": shown(image),
                        "class": decision.label,
                        "probabilities": probabilities,
                    }
                    row |= {} if names is None else {"set": names}
                    console.file.write(json.dumps(row) + "\n")
                else:
                    listed = "" if names is None else f"\t{printable(' | '.join(names))}"
                    console.file.write(
                        f"{printable(shown(image))}\t{printable(label)}\t{decision.confidence:.4f}{listed}\n"
                    )
            bar.advance(task, len(batch.files) + len(batch.unreadable))
    if csv_file is not None:
        with files.atomic(csv_file) as file:
            extras = [*(["answered"] if abstain else []), *(["set"] if sets else [])]
            text = comma_separated_rows(["file", "class", "confidence", *loaded.classes, *extras], rows)
            file.write(text.encode(errors="surrogateescape"))
        say(f"{counted(len(paths) - unreadable, 'prediction')}: {csv_file}")
    if unreadable == len(paths):
        which = reason if unreadable == 1 else f"none of {unreadable} images could be read"
        raise UserError(f"{which}; there was nothing to predict")
    say(f"{model}: {loaded.weights}", errors_console)
    if unreadable:
        say(
            f"{unreadable} of {counted(len(paths), 'image')} could not be read; the rest were predicted", errors_console
        )
        raise typer.Exit(1)


@with_reading_flags
def evaluate(
    model: options.ModelFolder,
    data: Annotated[str, typer.Option(help="Labelled images DIR/<domain>/<class>/, a table of files, or a dataset.")],
    skip_bad: options.SkipBad = False,
    reading: Reading = PLAIN,
    adapt: Adapt = None,
    adapt_keep: AdaptKeep = None,
    adapt_lr: AdaptLr = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Evaluate a model on labelled domains: accuracy per domain and class, and the worst of each.

    Images that the model was trained on, known by their pixels, are left out of the accuracies and counted separately.
    """
    from domainwise.cli.data_options import labelled_data
    from domainwise.models.folder import load_model

    loaded = load_model(model, device=device)
    if loaded.preprocessing.vectors:
        raise UserError(
            f"this model reads rows of {loaded.preprocessing.shape[0]} numbers, not images: use it from Python"
        )
    environments = labelled_data(loaded, data, skip_bad, reading, data_root)
    loaded = adapted(loaded, adapt, adapt_keep, adapt_lr)
    result = loaded.evaluate(environments)
    if as_json:
        print_json(result.as_json() | ({} if adapt is None else {"adapted": adapt}))
        return
    made = f"{loaded.card.algorithm}, {loaded.card.network}, trained on {', '.join(loaded.domains)}"
    caption = f"{made}; {loaded.weights}" + (f"; adapted by {adapt}, anew in every domain" if adapt else "")
    shown = environments.classes if len(environments.classes) <= CLASSES_SHOWN else ()
    counts = ("images", "seen in training") if result.seen_samples else ("images",)
    rows = []
    for domain, score in result.domains.items():
        cells = [f"{100 * score.classes[name]:.1f}" if name in score.classes else "" for name in shown]
        seen = f" ({score.role})" if score.trained_on else ""
        numbers = (score.samples, score.seen_samples)[: len(counts)]
        rows.append((domain + seen, *map(str, numbers), f"{100 * score.accuracy:.1f}", *cells))
    title = f"Accuracy of {model} on {environments.name}, per cent"
    console.print(Table(("domain", *counts, "all", *shown), rows, title, caption))
    calibrated = "as calibrated" if loaded.card.calibration else "not calibrated"
    console.print(replace(result.metrics_table(), title="Further metrics", caption=f"probabilities are {calibrated}"))
    _show_confusion(result.confusion)
    if result.seen_sentence:
        say(result.seen_sentence)
    say(str(result))


def _show_confusion(confusion: "Confusion") -> None:
    """Over all domains; nothing if all predictions are right."""
    wrong = {(a, b): n for a, row in confusion.items() for b, n in row.items() if a != b}
    if not wrong:
        return
    names = list(dict.fromkeys([*confusion, *(name for row in confusion.values() for name in row)]))
    if len(names) <= CLASSES_SHOWN:
        rows = [(name, *(str(row.get(other) or "") for other in names)) for name, row in confusion.items()]
        console.print(Table(("true class", *names), rows, "Images of each class (rows) by prediction"))
    most = sorted(wrong, key=lambda pair: -wrong[pair])[:COMMONEST]
    parts = [f"{a} taken for {b}: {wrong[a, b]} of {sum(confusion[a].values())}" for a, b in most]
    say(f"Most often wrong: {'; '.join(parts)}.")
