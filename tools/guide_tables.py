"""Tables and sentences of the README and the guides."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from domainwise.algorithms import ALGORITHMS
from domainwise.core.phrasing import counted
from domainwise.core.table import Table
from domainwise.sweeps.accuracy_table import AccuracyTable, Row
from domainwise.sweeps.leaderboard import plain
from published_results import Results

RULE = "training-domain"
LOOP, PLAIN_EVALUATION = "plain loop", "plain evaluation"
ALONE = ("captured", "compiled")
"""How a single run's step is executed on a GPU, as opposed to eager steps and several runs at once."""
SPEEDS = (
    ("step of ERM, ColoredMNIST, 4-layer CNN, 2 x 64", "coloredmnist", LOOP, "ERM", "tf32"),
    ("the same", "coloredmnist", LOOP, "ERM", "bf16"),
    ("step of ERM, PACS, ResNet-18, 3 x 32", "pacs-resnet18", LOOP, "ERM", "bf16"),
    ("step of ERM, PACS, ResNet-50, 3 x 32", "pacs-resnet50", LOOP, "ERM", "bf16"),
    ("evaluation, PACS, ResNet-50", "pacs-resnet50", PLAIN_EVALUATION, "evaluation", "bf16"),
)
"""Title, record, the loop's measurement, ours, and our precision."""
CASE = ("small-cnn", 28)
"""Network and image size of BackgroundDigits, whose step times are shown."""


def speed(root: Path, device: str) -> str:
    """Our times on one GPU beside those of a loop written the way DomainBed writes it, from the same benchmark."""
    rows, records = [], {}
    for title, name, loop, ours, precision in SPEEDS:
        record = records[name] = json.loads((root / "bench" / f"{device}-{name}.json").read_text())
        theirs = _milliseconds(record, loop, "default", ("eager",))
        mine = _milliseconds(record, ours, precision, ALONE)
        rows.append([title, precision, _shown(theirs), _shown(mine), f"{theirs / mine:.0f}"])
    headings = ("what", "our precision", "DomainBed-style loop, ms", "domainwise, ms", "times as fast")
    first = next(iter(records.values()))
    dates = " and ".join(sorted({record["date"] for record in records.values()}))
    caption = f"One {first['device']}, torch {first['torch']}, {dates}; both sides in one run of `domainwise bench`."
    return f"{Table(headings, rows, labels=2).markdown_rows()}\n\n{caption}"


def _shown(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _milliseconds(record: Mapping[str, Any], what: str, precision: str, forms: Sequence[str]) -> float:
    """The fastest of these forms."""
    wanted = [row for row in record["rows"] if (row["what"], row["precision"]) == (what, precision)]
    return min(row["milliseconds"] for row in wanted if row["form"] in forms)


def costs(root: Path, file: str, *names: str) -> str:
    """Per method: the time of a step, and the difference to ERM on every published experiment; the best first.

    Only draw 0, the settings fixed beforehand, counts: no method gains by a longer search.
    """
    cases = json.loads((root / "bench" / file).read_text())["cases"]
    times = next(case["times_erm"] for case in cases if (case["network"], case["size"]) == CASE)
    tables = [Results(root / name).of_rule(RULE, draws="1") for name in names]
    rows = [{str(plain(row.method)): row for row in table.rows} for table in tables]

    def gain(name: str) -> float:
        difference = rows[0][name].difference
        return math.inf if difference is None else difference.mean

    lines = []
    for name in sorted((name for name in ALGORITHMS if name in rows[0]), key=gain, reverse=True):
        time = "" if times.get(name) is None else "1" if name == "ERM" else f"{times[name]:.2g}"
        lines.append([name, time, *(_gap(by_method.get(name)) for by_method in rows)])
    headings = ("method", "step time / ERM's", *(table.dataset for table in tables))
    ahead = "; ".join(f"on {table.dataset}: {_ahead(table.rows)}" for table in tables)
    setups = "; ".join(map(_setup, tables))
    return f"{Table(headings, lines).markdown_rows()}\n\nClearly ahead of ERM {ahead}.\n\nSet-up: {setups}."


def _gap(row: Row | None) -> str:
    """The difference to ERM, in bold if it is clear; ERM's own average. No line breaks inside."""
    if row is None:
        return ""
    number = str(row.difference or row.average).replace(" ", "\N{NO-BREAK SPACE}")
    return f"**{number}**" if row.difference is not None and row.difference.clear else number


def _ahead(rows: Sequence[Row]) -> str:
    """The methods that are clearly ahead of ERM."""
    gaps = {str(plain(row.method)): row.difference for row in rows}
    return ", ".join(name for name, gap in gaps.items() if gap is not None and gap.clear and gap.mean > 0) or "none"


def _setup(table: AccuracyTable) -> str:
    steps, trials = ({getattr(row, fact) for row in table.rows} for fact in ("steps", "trials"))
    return f"{table.dataset}: {table.network}, {_range(steps)} steps, {_range(trials)} trials"


def _range(values: Collection[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def sentence(results: Results, name: str) -> str:
    """A method beside ERM on unseen domains, in words; the step is selected by training-domain validation."""
    table = results.of_rule(RULE)
    averages = {str(row.method): row.average for row in table.rows}
    own, erm = averages.get(name), averages.get("ERM")
    if own is None or erm is None:
        return table.sentence(name)
    reached = f"{name} reaches {own} %, ERM {erm} % ({counted(own.n, 'trial')})"
    return f"On unseen domains {reached}. {table.sentence(name)}"


def serving(root: Path, file: str) -> str:
    """A server under load: answers, times and memory, of every network that was measured."""
    record = json.loads((root / "bench" / file).read_text())
    rows = []
    for name, found in record["networks"].items():
        load, network = found["load"], name.replace(":", ", ") + " pixels"
        memory, seconds = load["memory_megabytes"], load["seconds"]
        refused = sum(count for what, count in load["answers"].items() if what.endswith((" 429", " 503")))
        errors = sum(sum(found[phase]["errors"].values()) for phase in ("load", "killed", "stopped"))
        rows.append(
            [
                network,
                f"{sum(load['answers'].values()):,}",
                f"{100 * refused / sum(load['answers'].values()):.0f} %",
                str(errors),
                f"{load['images_per_second']:,.0f}",
                f"{seconds['median']:.2f} / {seconds['p99']:.2f}",
                f"{memory['second quarter']} / {memory['last quarter']}",
                f"{found['killed']['restart_seconds']:.0f}",
            ]
        )
    headings = ("network", "answers", "503", "errors", "images per second", "seconds, median / p99")
    more = ("MiB, second / last quarter", "seconds from kill -9 to answers")
    load = record["load_average_before"][0]
    caption = (
        f"{record['clients']} clients for {record['seconds']:.0f} s on {record['cores']} cores that clients and other "
        f"work shared (load average before: {load}), torch {record['torch']}, {record['date']}: "
        "`python benchmarks/serving.py`. An error is anything but an answer, 503, or 4xx for bad input."
    )
    return f"{Table((*headings, *more), rows).markdown_rows()}\n\n{caption}"


def calibration(root: Path, file: str) -> str:
    """What calibration on other domains is worth on a domain that neither it nor the model has seen."""
    record = json.loads((root / "bench" / file).read_text())
    rows = []
    for domain, found in record["domains"].items():

        def mean(name: str, trials: Sequence[Mapping[str, float]] = found["trials"]) -> float:
            return sum(trial[name] for trial in trials) / len(trials)

        names = ("accuracy", "ece_before", "ece_after", "sets_90_coverage")
        percents = [f"{100 * mean(name):.1f}" for name in names]
        answered = f"{100 * mean('coverage_50_answered'):.1f} / {100 * mean('coverage_50_error'):.1f}"
        rows.append([domain, *percents, f"{mean('sets_90_size'):.1f}", answered])
    headings = ("unseen domain", "accuracy", "calibration error before", "after", "coverage of 90 % sets")
    more = ("classes in a set", "answered / wrong of these, coverage=0.5")
    caption = (
        f"Per cent; {record['data']}, a linear probe on frozen features, mean of "
        f"{len(next(iter(record['domains'].values()))['trials'])} trials: `python benchmarks/calibration.py`."
    )
    return f"{Table((*headings, *more), rows).markdown_rows()}\n\n{caption}"


def metric_costs(root: Path, *files: str) -> str:
    """By how many per cent all metrics make an evaluation longer."""
    rows = []
    for file in files:
        record = json.loads((root / "bench" / file).read_text())
        for case, row in record["cases"].items():
            where = str(record["machine"].get("device", file))
            rows.append([case, where, f"{row['images']:,}", f"{row['ms']:,.1f}", f"{row['added']:+.1f}"])
    headings = ("evaluation of", "on", "images", "accuracy and loss alone, ms", "all metrics, %")
    return Table(headings, rows, labels=2).markdown_rows()
