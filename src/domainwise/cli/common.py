"""What the commands share: consoles, options, and reading NAME=VALUE."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from domainwise.cli import complete
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.protocol.spaces import Value


def _console(stderr: bool) -> Console:
    """A terminal has its own width; a file or pipe gets lines long enough for a table."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=120)


console = _console(stderr=False)
"""Results go here."""
errors_console = _console(stderr=True)
"""Progress and errors go here, so that standard output is clean for scripts."""


def say(line: str, to: Console = console) -> None:
    """A line as it stands: brackets in a user's names are no markup, and where to break it is the terminal's matter."""
    to.print(line, soft_wrap=True, highlight=False, markup=False)


Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="fp32 (strict), tf32, bf16 or auto: tf32 on a GPU, else fp32.")]
FullCurves = Annotated[bool, typer.Option("--full-curves", help="Judge every split, not only what selection needs.")]
Seed = Annotated[int, typer.Option(help="Changes every random stream.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Track = Annotated[list[str] | None, typer.Option(help="Also record, per training domain: penalties.")]
Weights = Annotated[
    str, typer.Option(help="File a pre-trained network starts from (default: the published one, in the data root).")
]
Own = Annotated[
    Path | None, typer.Option("--data", help="Folder of your own images: DIR/<domain>/<class>/*.jpg (png, webp, ...).")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images of your own folder that cannot be decoded.")
]
Network = Annotated[
    str,
    typer.Option(
        help="See: domainwise list; auto: the dataset's, and for --data by the weights here.",
        autocompletion=complete.networks,
    ),
]
EvaluateEvery = Annotated[int | None, typer.Option(help="Steps between evaluations (default: the dataset's).")]
ImageSize = Annotated[
    int | None, typer.Option(help="Height and width to load images at (default: the dataset's, or as --network wants).")
]
Augmentation = Annotated[
    str | None,
    typer.Option(help="Of training images: none, domainbed or oodbench (default: the dataset's, or the network's)."),
]
LogTo = Annotated[
    list[str] | None, typer.Option(help="Also send the records to tensorboard, wandb or mlflow; repeat for several.")
]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the datasets (default: $DOMAINWISE_DATA).")]


def print_json(value: Any) -> None:
    console.file.write(json.dumps(value, indent=1) + "\n")


def names(text: str) -> tuple[str, ...]:
    """ "ERM,DAT" -> ("ERM", "DAT")."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_hparams(pairs: Sequence[str], option: str = "--hparam") -> "dict[str, Value]":
    """["eps=2", "norm=linf"] -> {"eps": 2, "norm": "linf"}."""
    values: dict[str, Value] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            example = "eps=2" if option == "--hparam" else "slurm_partition=gpu"
            raise UserError(f"{option} {pair!r}: write NAME=VALUE, e.g. {option} {example}")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if isinstance(value, (list, dict)):
            raise UserError(f"{option} {pair!r}: the value must be a number or a word")
        values[name] = value
    return values
