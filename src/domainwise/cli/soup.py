"""`domainwise soup` and `domainwise ensemble`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from domainwise.cli import options
from domainwise.cli.filter_flags import with_runs_wanted
from domainwise.cli.output import console, print_json, say
from domainwise.core.errors import UserError

if TYPE_CHECKING:
    from domainwise.models.combinable import RunsWanted
    from domainwise.protocol.runs import Combination

EXAMPLES = (
    "Examples:  [bold]domainwise sweep --dataset BackgroundDigits --algorithms ERM --space soup --hparams 6[/]"
    "   ·   [bold]domainwise soup runs/sweep --greedy[/]"
    "   ·   [bold]domainwise soup runs/sweep --test-domain scene1 --trial 0 --out model[/]"
)
ENSEMBLE_EXAMPLES = (
    "Examples:  [bold]domainwise ensemble runs/sweep[/]"
    "   ·   [bold]domainwise ensemble runs/sweep --algorithm ERM --test-domain scene1 --trial 0 --out model[/]"
)

Runs = Annotated[list[Path], typer.Argument(help="A sweep's folder, or the folders of runs (OUT/<run id>).")]
Out = Annotated[Path | None, typer.Option(help="Folder of the model; name test domain and trial if there are several.")]


@with_runs_wanted
def soup(
    runs: Runs,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Only runs that do not lower training-domain validation (default: all).")
    ] = False,
    *,
    wanted: "RunsWanted",
    out: Out = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Average the weights of finished runs that share their start: one model, as fast as one run.

    A sweep gives one soup per test domain and trial. Each is evaluated on the splits of its runs and recorded in the
    sweep's folder, so that table, report and publish show it. Runs of sweep --space soup share their start.
    """
    rule: Combination = "greedy soup" if greedy else "uniform soup"
    _combine(runs, rule, wanted, out, data_root, device, as_json)


@with_runs_wanted
def ensemble(
    runs: Runs,
    wanted: "RunsWanted",
    out: Out = None,
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    as_json: options.Json = False,
) -> None:
    """Average the probabilities of finished runs: one model with the weights, and the cost, of all of them.

    A sweep gives one ensemble per test domain and trial. Each is evaluated on the splits of its runs and recorded in
    the sweep's folder, so that table, report and publish show it. The runs may have any start.
    """
    _combine(runs, "ensemble", wanted, out, data_root, device, as_json)


def _combine(
    runs: Sequence[Path],
    combination: "Combination",
    wanted: "RunsWanted",
    out: Path | None,
    data_root: Path | None,
    device: str,
    as_json: bool,
) -> None:
    from domainwise.models.combination import Combinations
    from domainwise.models.combine import combine

    sweep = runs[0] if len(runs) == 1 and not (runs[0] / "run.json").exists() else None
    if sweep is None and out is None:
        raise UserError("the runs become one model: name its folder", argument="out")
    made = []
    for one in combine(runs, combination, wanted, device, data_root, single=out is not None, out=out):
        if out is not None:
            model = one.model(device)
            model.save(out)
        if sweep is not None:
            one.record(sweep)
        made.append(one)
    result = Combinations(tuple(made))
    if as_json:
        print_json({"combinations": result.to_records(), "model": None if out is None else str(out)})
        return
    if made:
        console.print(result)
    if sweep is not None:
        say(f"Recorded in {sweep}{'' if made else ' already'}: see domainwise table {sweep}")
    if out is not None:
        say(f"Model: {out}; {model.weights}")
        say(model.unseen)
