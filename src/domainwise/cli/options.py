"""The options and arguments that several commands share, and how their values are read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from domainwise.cli import complete
from domainwise.core.errors import UserError
from domainwise.protocol.balance import BALANCES
from domainwise.protocol.metrics import METRICS
from domainwise.protocol.recipe import FREEZABLE, LR_SCHEDULES, STARTS, TRAINABLE

if TYPE_CHECKING:
    from domainwise.protocol.spaces import Value

# Data
Dataset = Annotated[str | None, typer.Option(help="See: domainwise list.", autocompletion=complete.datasets)]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Your own images: DIR/<domain>/<class>/*.jpg, or a table of files (.csv, .jsonl, .parquet)."
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images of your own folder that cannot be decoded.")
]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the datasets (default: $DOMAINWISE_DATA).")]
ImageSize = Annotated[
    int | None, typer.Option(help="Height and width to load images at (default: the dataset's or the network's).")
]
Augmentation = Annotated[
    str | None,
    typer.Option(
        help="Of training images: none, domainbed, domainbed-original-size, domainbed-uncropped or oodbench (default: "
        "the dataset's or the network's)."
    ),
]

# Training
Network = Annotated[
    str,
    typer.Option(
        help="See: domainwise list; hf:NAME or timm:NAME of a hub or a folder; auto: the dataset's; for --data, by the "
        "weights that are present.",
        autocompletion=complete.networks,
    ),
]
Weights = Annotated[
    str, typer.Option(help="File a pre-trained network starts from (default: the published one, in the data root).")
]
Steps = Annotated[int | None, typer.Option(help="Updates per run (default: the dataset's).")]
EvaluateEvery = Annotated[int | None, typer.Option(help="Steps between evaluations (default: the dataset's).")]
FixedHparam = Annotated[list[str] | None, typer.Option(help="Fix a hyper-parameter: NAME=VALUE; repeat for several.")]
Start = Annotated[
    str,
    typer.Option(
        help="probe: start from the best linear classifier on the initial features.",
        autocompletion=complete.among(*STARTS),
    ),
]
Freeze = Annotated[
    str,
    typer.Option(
        help="none, or features: train only the classifier.", autocompletion=complete.among("none", *FREEZABLE)
    ),
]
Train = Annotated[
    str,
    typer.Option(
        help="Part of the features that trains: attention, or last:N blocks (default: all).",
        autocompletion=complete.among(*TRAINABLE),
    ),
]
LayerDecay = Annotated[
    float,
    typer.Option(
        help="Factor of the learning rate from each block to the one before it (default: 1).", show_default=False
    ),
]
LrSchedule = Annotated[
    str,
    typer.Option(
        help="Learning rates over the steps: constant, cosine or warmup-cosine.",
        autocompletion=complete.among(*LR_SCHEDULES),
    ),
]
ClipGradient = Annotated[
    float, typer.Option(help="Largest total norm of the gradients (default: no limit).", show_default=False)
]
EarlyStop = Annotated[
    int,
    typer.Option(
        help="Stop after this many evaluations without a better training-domain validation (default: never).",
        show_default=False,
    ),
]
Balance = Annotated[
    str,
    typer.Option(
        help=f"Draw rare classes, or small groups, of a domain as often as others ({', '.join(BALANCES)}). "
        "Domains are always balanced.",
        autocompletion=complete.among(*BALANCES),
    ),
]
ClassWeight = Annotated[
    list[str] | None, typer.Option(help="CLASS=NUMBER: draw a class so many times as often; repeat for several.")
]
Precision = Annotated[str, typer.Option(help="fp32 (strict), tf32, bf16 or auto: tf32 on a GPU, else fp32.")]
FullCurves = Annotated[
    bool, typer.Option("--full-curves", help="Evaluate all splits, not only those of selection rules.")
]
Track = Annotated[list[str] | None, typer.Option(help="Also record for every training domain: penalties.")]
LogTo = Annotated[
    list[str] | None, typer.Option(help="Also send the records to tensorboard, wandb or mlflow; repeat for several.")
]
Save = Annotated[
    str,
    typer.Option(
        help="Weights of the model: best (the step that training-domain validation selects), last, averaged, or auto: "
        "averaged if --average, else best.",
        autocompletion=complete.among("auto", "best", "last", "averaged"),
    ),
]
Average = Annotated[
    str,
    typer.Option(
        help="Also evaluate averaged weights of the training: none, ema, sma or swad.",
        autocompletion=complete.among("none", "ema", "sma", "swad"),
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[
    int, typer.Option(help="CPU threads per run, part of its identity: results differ in rounding.", min=1)
]
Seed = Annotated[int, typer.Option(help="Changes every random stream.")]

# Searches, and where their runs go
Algorithms = Annotated[str, typer.Option(help="Names, separated by commas.", autocompletion=complete.algorithms)]
Trials = Annotated[int, typer.Option(help="Repetitions: other splits, initial weights and batches.")]
On = Annotated[str, typer.Option(help="Where to run: local, ray or slurm.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Processes on this machine (default: one per GPU, or cores / --threads).", min=1, max=4096),
]
PerGpu = Annotated[str, typer.Option(help="Runs that share each GPU, or auto: the fastest number.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster to join (default: start one on the loopback).")]
Slurm = Annotated[list[str] | None, typer.Option(help="submitit parameter NAME=VALUE, e.g. slurm_partition=gpu.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the number of runs and how long they would take.")]
Retry = Annotated[bool, typer.Option("--retry", help="Train failed runs again.")]

# Folders that commands read
SweepFolder = Annotated[Path, typer.Argument(help="A sweep's folder.")]
ResultsFolder = Annotated[Path, typer.Argument(help="A folder of a sweep, a training or a demo, or of DomainBed.")]
ReportFolder = Annotated[
    Path, typer.Argument(help="A folder of a sweep, training or demo, of DomainBed, or of published ones.")
]
RunFolders = Annotated[
    list[Path], typer.Argument(help="Folders of runs or trainings, or of a sweep: one run per method.")
]
FilterDataset = Annotated[str | None, typer.Option("--dataset", help="Which dataset, if a sweep has several.")]
FilterAlgorithm = Annotated[str | None, typer.Option("--algorithm", help="Which algorithm, if a sweep has several.")]
FilterDomain = Annotated[str | None, typer.Option("--test-domain", help="Unseen domain of the runs, for a sweep.")]
FilterTrial = Annotated[int | None, typer.Option("--trial", help="Trial of the runs, for a sweep.")]
ModelFolder = Annotated[Path, typer.Argument(help="Folder of a model, written by train --out, fit or save.")]
Abstain = Annotated[
    str, typer.Option(help="Answer only if confident: coverage=0.9, or risk=0.05 (needs a calibrated model).")
]
Sets = Annotated[str, typer.Option(help="Also sets of classes that hold the true one at this level, e.g. 0.9.")]
Images = Annotated[list[str], typer.Argument(help="Image files, folders, tables, or quoted patterns.")]

# Results
Partial = Annotated[bool, typer.Option("--partial", help="Count runs that failed or are not finished too, and say so.")]
Baseline = Annotated[str, typer.Option(help="Method that paired differences refer to.")]
MetricName = Annotated[
    str,
    typer.Option(
        "--metric",
        help="accuracy, balanced-accuracy, macro-f1, auroc, nll, calibration-error, worst-class or "
        "worst-group: shown, and used to "
        "select (but calibration-error: by accuracy).",
        autocompletion=complete.among(*METRICS),
    ),
]
Picture = Annotated[Path, typer.Option(help="The picture: .png, .pdf or .svg.")]
OptionalPicture = Annotated[Path | None, typer.Option(help="Also a picture: .png, .pdf or .svg.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def parse_names(text: str) -> tuple[str, ...]:
    """ "ERM,DAT" -> ("ERM", "DAT")."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_class_weights(pairs: Sequence[str]) -> dict[str, float]:
    """["fox=5"] -> {"fox": 5.0}; a class may have any name."""
    weights: dict[str, float] = {}
    for pair in pairs:
        name, _, text = pair.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            name = ""
        if not name or name in weights:
            raise UserError(f"--class-weight {pair!r}: write CLASS=NUMBER, each class once, e.g. fox=5")
        weights[name] = weight
    return weights


def parse_hparams(pairs: Sequence[str], option: str = "--hparam") -> "dict[str, Value]":
    """["eps=2", "norm=linf"] -> {"eps": 2, "norm": "linf"}."""
    values: dict[str, Value] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            example = "slurm_partition=gpu" if option == "--slurm" else "eps=2"
            raise UserError(f"{option} {pair!r}: write NAME=VALUE, e.g. {option} {example}")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        if isinstance(value, (list, dict)):
            raise UserError(f"{option} {pair!r}: the value must be a number or a word")
        values[name] = value
    return values
