"""The command that makes a plan, or one run, again: what a report tells its reader to type."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from domainwise.core import plugins
from domainwise.core.errors import UserError
from domainwise.protocol.averages import NONE
from domainwise.protocol.balance import ClassWeights, as_pairs
from domainwise.protocol.dataset_names import FOLDER
from domainwise.protocol.reading import Reading
from domainwise.protocol.runs import Run
from domainwise.protocol.spaces import Value
from domainwise.sweeps.plan import Plan
from domainwise.sweeps.plan_run import plan_run

OPTIONS = {"draws": "hparams"}
"""Fields whose option has another name."""
ALWAYS_NAMED = ("precision", "draws", "trials")
"""Fields whose option has another default than the field: it depends on the device, or on the command."""
FIRST_COMMAND = "the command that made it, with --retry"
"""Where the command is not known."""


def sweep_command(plan: Plan, out: Path) -> str | None:
    """`domainwise sweep`, or `compare` of candidates, with what differs from its defaults.

    None where no option says it: ranges of `reproduce`, cells of a grid, what only `tune` can be asked for, a
    fraction held out, and a shared start outside of the space "soup".
    """
    candidates = plan.search == "candidates"
    only_tune = candidates and (plan.test_domains or plan.options.track or plan.options.full_curves)
    unsaid = plan.options.held_out is not None or plan.options.shared_start
    if plan.ranges or plan.variant or only_tune or unsaid:
        return None
    of_plan = [(field, getattr(plan, field.name)) for field in fields(plan) if field.name not in ("search", "options")]
    of_options = [(field, getattr(plan.options, field.name)) for field in fields(plan.options)]
    words = [word for field, value in (*of_plan, *of_options) for word in _option(field, value)]
    if candidates and not plan.options.average:
        words += ["--average", NONE]  # compare averages unless told otherwise
    command, folder = ("compare", "--runs") if candidates else ("sweep", "--out")
    return shlex.join([*_program(), command, *words, folder, str(out)])


def retry_command(plan: Plan, out: Path) -> str | None:
    """The same command, which tries failed runs again; compare always does."""
    command = sweep_command(plan, out)
    return command if command is None or plan.search == "candidates" else f"{command} --retry"


def example_command(command: str, options: Mapping[str, object]) -> str:
    """A command with these options; True is an option without a value."""
    return shlex.join(["domainwise", command, *_options(options)])


def _option(field: Field[Any], value: Any) -> Iterator[str]:
    default = field.default if field.default is not MISSING else None
    name = f"--{OPTIONS.get(field.name, field.name).replace('_', '-')}"
    if (value == default and field.name not in ALWAYS_NAMED) or value == ():
        return
    if isinstance(value, Mapping):
        yield from _hparams(value)
    elif field.name == "class_weights":
        yield from _class_weights(value)
    elif value is True:
        yield name
    else:
        yield from (name, ",".join(value) if isinstance(value, tuple) else str(value))


def train_command(run: Run, out: Path, save: str = "") -> str | None:
    """`domainwise train` that makes exactly this run; None if its options cannot (checked by the run's identity)."""
    facts: dict[str, Any] = {"network": run.network, "steps": run.steps, "evaluate_every": run.evaluate_every}
    facts |= {"draw": run.draw, "trial": run.trial, "seed": run.seed, "precision": run.precision}
    further = {"weights": run.weights, "image_size": run.image_size, "full_curves": run.full_curves}
    further |= {"threads": run.threads if run.threads > 1 else 0, "average": run.average}
    facts |= {"augmentation": run.augmentation} | run.recipe | {name: value for name, value in further.items() if value}
    domains: dict[str, Any] = {"train_domains": run.train_domains, "track": run.track}
    try:
        plain = plan_run(run.dataset, run.algorithm, run.test_domains, **domains, **facts)
        facts |= {"held_out": run.held_out} if run.held_out != plain.held_out else {}
        fixed = {name: value for name, value in run.hparams.items() if plain.hparams.get(name) != value}
        same = plan_run(run.dataset, run.algorithm, run.test_domains, **domains, **facts, hparams=fixed)
    except UserError:
        return None
    if same.id != run.id:
        return None
    words = [*_program(), "train", "--dataset", run.dataset, "--algorithm", run.algorithm]
    for option, names in (("test-domain", run.test_domains), ("train-domain", run.train_domains), ("track", run.track)):
        words += [word for name in names for word in (f"--{option}", name)]
    words += _hparams(fixed)
    words += _class_weights(facts.pop("class_weights", ()))
    words += _options(facts)
    return shlex.join([*words, "--out", str(out), *(["--save", save] if save else [])])


def without_paths(words: Sequence[str]) -> list[str]:
    """The words of a command with files and folders by their last name alone, for readers on other machines."""
    result: list[str] = []
    for word in words:
        if (folder := FOLDER.fullmatch(word)) and result[-1:] == ["--dataset"]:
            result[-1:] = _data_words(folder)
        else:
            result.append(Path(word).name if Path(word).is_absolute() else word)
    return result


def _data_words(folder: re.Match[str]) -> Iterator[str]:
    """The options that read a folder or table as the name of its dataset says."""
    reading = Reading.parse(folder["reading"] or "")
    yield from ("--data", Path(folder["path"]).name)
    for role, column in reading.columns:
        yield from ("--columns", f"{role}={column}")
    window = "" if reading.window is None else f"{reading.window[0]}:{reading.window[1]}"
    root = reading.root if "://" in reading.root else Path(reading.root).name
    named = {"root": root, "window": window, "bursts": f"time:{reading.bursts}s" if reading.bursts else ""}
    yield from _options({name: value for name, value in named.items() if value})
    if folder["skipping"]:
        yield "--skip-bad"


def _options(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        yield from (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))


def _program() -> Iterator[str]:
    """With the plugins in use: without them names may be unknown."""
    yield "domainwise"
    for name in plugins.files():
        yield from ("--plugin", name)


def _class_weights(weights: ClassWeights) -> Iterator[str]:
    for pair in as_pairs(weights):
        yield from ("--class-weight", pair)


def _hparams(values: Mapping[str, Value]) -> Iterator[str]:
    for name, value in values.items():
        yield from ("--hparam", f"{name}={'null' if value is None else value}")
