"""Tables in every form, and where a sweep stands, from records made by hand."""

import csv
import io
import re
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from rich.console import Console

from commands import Command, standard_json
from domainwise.cli import status
from domainwise.core.errors import UserError
from domainwise.core.locks import RunLock
from domainwise.core.phrasing import counted, duration
from domainwise.core.table import comma_separated
from domainwise.protocol.records import Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.selection import Column, Method
from domainwise.reports.figures import draw
from domainwise.sweeps.accuracy_table import AccuracyTable
from domainwise.sweeps.collection import collect
from domainwise.sweeps.events import mark_failed
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.tables import AccuracyTables, tables
from domainwise.sweeps.tables import table as domainwise_table
from handmade_records import COLOURS, colours, write_done_run, write_run, write_sweep
from scores import scores

FORMATS = ("terminal", "markdown", "latex", "csv", "json")


# forms

SCORES = scores(
    {
        "ERM": {"photo": {0: 70.0, 1: 72.0}, "sketch": {0: 60.0, 1: 60.0}},
        "DAT": {"photo": {0: 69.0, 1: 70.0}, "sketch": {0: 65.0, 1: 64.0}},
        "AT": {"photo": {0: 31 / 3}},
    }
)
PHOTO, SKETCH = Column("photo"), Column("sketch")
TABLE = AccuracyTable.of("PACS", "oracle", SCORES, ("ERM", "DAT", "AT"))
NAMES = ("a|b", "50% & _more_ #1", r"{x} $y$ \z ~ ^", "[bold]", "ä → ö")
AWKWARD = {Column(name): {0: 10.0 * i, 1: 10.0 * i} for i, name in enumerate(NAMES)}
AWKWARD_TABLE = AccuracyTable.of(
    "My|data_[/1]", "oracle", {Method("ERM"): AWKWARD, Method("DAT", "l2, a|b_c [x]"): AWKWARD}
)


def printed(table: AccuracyTable, width: int = 120, style: str | None = None) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=style is not None, color_system=style)  # type: ignore[arg-type]
    console.print(table)
    return out.getvalue()


def test_a_table_holds_cells_averages_and_differences_by_hand() -> None:
    erm, dat, at = TABLE.rows
    assert (erm.cells[PHOTO].mean, erm.cells[PHOTO].n) == (71.0, 2)
    assert erm.cells[PHOTO].error == pytest.approx(1.0) and erm.average and erm.average.mean == 65.5
    assert dat.difference and (dat.difference.mean, dat.difference.ahead, dat.difference.behind) == (1.5, 2, 2)
    assert at.average is None and SKETCH not in at.cells and erm.difference is None
    assert "oracle validation" in TABLE.caption and "PACS" in TABLE.title


def test_the_best_of_every_column_is_bold_in_a_terminal() -> None:
    bold = re.findall(r"\x1b\[1m([\d.]+ ± [\d.]+)\x1b\[0m", printed(TABLE, style="standard"))
    assert bold == ["71.0 ± 1.0", "64.5 ± 0.5", "67.0 ± 0.0"]


def test_a_terminal_table_says_what_is_missing_and_how_points_were_chosen() -> None:
    text = printed(TABLE)
    assert "not run" in text and "minus ERM" in text and "by oracle validation" in " ".join(text.split())
    assert all(name in printed(AWKWARD_TABLE, 200) for name in [*NAMES, "My|data_[/1]", "DAT (l2, a|b_c [x])"])


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_is_cut_off_however_long_the_names_of_domains(width: int) -> None:
    domains = ("art_painting", "cartoon", "photo", "sketch")
    columns = [Column(b, a) for a in domains for b in domains if a != b]
    by_column = {column: {0: 10.0 + i, 1: 11.0 + i} for i, column in enumerate(columns)}
    found = {Method("ERM"): by_column, Method("DAT"): {**by_column, columns[0]: {0: 99.0}}}
    table = AccuracyTable.of("PACS", "oracle", found)
    text = printed(table, width)
    for line in table.as_table().rows:
        assert all(cell in text for cell in line)


def fields(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [field.strip() for field in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize(
    "table",
    [TABLE, AccuracyTable.of("Mine", "oracle", {Method("ERM"): AWKWARD}), AWKWARD_TABLE],
    ids=["plain", "domains", "methods"],
)
def test_markdown_has_as_many_cells_in_every_line(table: AccuracyTable) -> None:
    lines = [line for line in table.as_table().markdown().splitlines() if line.startswith("|")]
    assert [len(fields(line)) for line in lines] == [len(table.as_table().headings)] * (2 + len(table.rows))
    assert [fields(line)[0].replace(r"\|", "|") for line in lines[2:]] == [str(row.method) for row in table.rows]
    assert table.caption in table.as_table().markdown()


def test_markdown_marks_the_best() -> None:
    (erm,) = [fields(line) for line in TABLE.as_table().markdown().splitlines() if line.startswith("| ERM")]
    assert erm == ["ERM", "**71.0 ± 1.0**", "60.0 ± 0.0", "65.5 ± 0.5", ""]


@pytest.mark.parametrize("table", [TABLE, AWKWARD_TABLE], ids=["plain", "awkward"])
def test_latex_is_balanced_and_escaped(table: AccuracyTable) -> None:
    text = table.as_table().latex()
    code = re.sub(r"(?<!\\)%.*", "", text)
    bare = re.sub(r"\\[&%$#_{}\\]", "", code)
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0 and "#" not in bare and "±" not in bare
    assert not re.search(r"[~→_]|\^(?!\{)", bare)
    body = code.split(r"\toprule")[1].split(r"\bottomrule")[0].replace(r"\midrule", "")
    rows = [row for row in body.split(r" \\") if row.strip()]
    counts = [len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows]
    assert counts == [len(table.as_table().headings)] * (1 + len(table.rows))
    assert re.search(r"\\begin\{tabular\}\{lr+\}", code) and table.caption in text


def test_csv_reads_back() -> None:
    lines = list(csv.DictReader(io.StringIO(comma_separated(AccuracyTables((TABLE, AWKWARD_TABLE)).to_records()))))
    found = {(line["dataset"], line["method"], line["domain"]): line for line in lines}
    assert len(found) == len(lines) == (3 + 3 + 1) + 2 * 6
    for table in (TABLE, AWKWARD_TABLE):
        for row in table.rows:
            for column, value in row.cells.items():
                line = found[table.dataset, str(row.method), str(column)]
                error = float(line["error"]) if line["error"] else None
                assert (float(line["mean"]), error, int(line["trials"])) == (value.mean, value.error, value.n)
                assert line["selection"] == "oracle" and line["baseline"] == "ERM"
                gap = row.difference
                shown = tuple(line[name] for name in ("difference", "difference error", "pairs", "p", "verdict"))
                if gap is None:
                    assert shown == ("",) * 5
                else:
                    error = "" if gap.error is None else str(gap.error)
                    assert shown == (str(gap.mean), error, str(gap.n), str(gap.p), gap.verdict)


def test_a_column_that_a_rule_cannot_judge_stays_and_says_so(tmp_path: Path) -> None:
    """Leave-one-domain-out has the pairs that it needs for one domain, but not for the others."""
    for test in [*((colour,) for colour in COLOURS), *((COLOURS[0], other) for other in COLOURS[1:])]:
        for algorithm in ("ERM", "DAT"):
            write_done_run(tmp_path, colours(algorithm, test), 0.7)
    rule = "leave-one-domain-out"
    (found,) = tables(collect(tmp_path), rule)
    assert found.columns == tuple(map(Column, COLOURS))
    for row in found.rows:
        assert set(row.cells) == {Column(COLOURS[0])} and row.average is None
        assert row.not_judged == (Column(COLOURS[1]), Column(COLOURS[2]))
    assert fields(found.as_table().markdown().splitlines()[4])[2:5] == ["not judged", "not judged", "not run"]
    words = (
        f"no run has what {rule} validation needs on {COLOURS[1]} (all methods), {COLOURS[2]} (all methods): no average"
    )
    assert words in found.caption and "differences are over the rest alone" in found.caption
    assert found.as_json()["rows"][0]["not_judged"] == list(COLOURS[1:])
    (everything,) = tables(collect(tmp_path), "training-domain")
    assert "no run has what" not in everything.caption and all(not row.not_judged for row in everything.rows)


def test_a_method_that_a_rule_can_judge_nowhere_stays_and_says_so(domainwise: Command, tmp_path: Path) -> None:
    """VREx needs two training domains, so that on three there are no runs of it that leave out two."""
    for test in [*((colour,) for colour in COLOURS), *combinations(COLOURS, 2)]:
        for algorithm in ("ERM", "VREx")[: 3 - len(test)]:
            write_done_run(tmp_path, colours(algorithm, test), 0.7)
    rule = "leave-one-domain-out"
    (found,) = tables(collect(tmp_path), rule)
    erm, vrex = found.rows
    assert erm.average is not None and not erm.not_judged
    assert (str(vrex.method), vrex.average, vrex.difference) == ("VREx", None, None)
    assert vrex.not_judged == tuple(map(Column, COLOURS)) and (vrex.draws, vrex.trials, vrex.steps) == (1, 1, 21)
    assert fields(found.as_table().markdown().splitlines()[5]) == ["VREx", *["not judged"] * 3, "not run", ""]
    words = f"no run has what {rule} validation needs on {', '.join(f'{colour} (VREx)' for colour in COLOURS)}"
    assert words in found.caption
    shown = domainwise("table", tmp_path, "--selection", rule, "--format", "csv")
    assert "VREx" not in shown.out and words in shown.err
    domainwise("report", tmp_path, "--no-models")
    assert (tmp_path / "report.html").read_text().count('<td class="absent">not judged') == 3
    with pytest.raises(UserError, match="two methods, one of them evaluated on every domain"):
        draw("domains", tmp_path, collect(tmp_path), rule=rule)
    assert draw("curves", tmp_path, collect(tmp_path), rule=rule).title.startswith("ColoredMNIST")


@pytest.mark.parametrize("begun", [False, True], ids=["not begun", "begun"])
def test_no_average_covers_only_the_domains_that_a_sweep_has_reached(tmp_path: Path, begun: bool) -> None:
    """Whether the run of the last domain has begun or not, and whatever else is planned there."""
    options = {"draws": 1, "trials": 1, "evaluate_every": 20}
    plan = plan_sweep("ColoredMNIST", ("ERM", "DAT"), pairs=True, steps=21, **options)
    for one in (plan, plan_sweep("ColoredMNIST", ("ERM",), steps=41, **options)):
        one.save(tmp_path)
    reached = [run for run in plan.runs() if len(run.test_domains) == 1 and COLOURS[2] not in run.test_domains]
    for run in reached:
        write_done_run(tmp_path, run, 0.7)
    if begun:
        write_run(tmp_path, next(run for run in plan.runs() if run.test_domains == (COLOURS[2],)), ended="")
    (found,) = tables(collect(tmp_path).finished(), "training-domain")
    assert found.columns == tuple(map(Column, COLOURS)) and len(reached) == 4
    for row in found.rows:
        assert set(row.cells) == set(map(Column, COLOURS[:2])) and row.average is None and not row.not_judged
    assert fields(found.as_table().markdown().splitlines()[4])[3:5] == ["not run", "not run"]
    assert f"{8 - begun} planned runs missing ({'DAT, ERM' if begun else 'ERM, DAT'})" in found.caption
    assert ("left out: 1 run not finished" in found.caption) == begun
    with pytest.raises(UserError, match="two methods evaluated on every domain"):
        draw("methods", tmp_path, collect(tmp_path).finished(), rule="training-domain")
    for run in plan.runs():
        if run not in reached and not (begun and run.test_domains == (COLOURS[2],) and run.algorithm == "ERM"):
            write_done_run(tmp_path, run, 0.7)
    (found,) = tables(collect(tmp_path), "training-domain")
    assert "missing" not in found.caption and all(row.average is not None for row in found.rows)


# the command


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_is_printed_alone(domainwise: Command, tmp_path: Path, form: str) -> None:
    write_sweep(tmp_path / "runs")
    (tmp_path / "runs" / "foreign").mkdir()
    (tmp_path / "runs" / "foreign" / "run.json").write_text("{}")
    result = domainwise("table", "runs", "--format", form)
    assert result.status == 0 and result.err.startswith("note: ") and result.err.count("\n") == 1
    plain = result.out.replace(r"\pm", "±").replace(r"\%", "%")
    assert "training-domain" in plain and ("51.0 ± 1.0" in plain or form in ("csv", "json"))
    if form == "terminal":
        assert "2 draws x 2 trials" in plain and "21 steps" in plain and "DAT is clearly ahead of ERM" in plain
    if form == "csv":
        assert len(list(csv.DictReader(io.StringIO(result.out)))) == 2 * 4
    if form == "json":
        assert domainwise("table", "runs", "--json").out == result.out
        (table,) = standard_json(result.out)["tables"]
        assert [row["method"] for row in table["rows"]] == ["ERM", "DAT"] and table["columns"] == list(COLOURS)
        assert table["rows"][1]["difference"]["mean"] == pytest.approx(10.0)
        row = table["rows"][0]
        assert (row["draws"], row["trials"], row["steps"]) == (2, 2, 21)


def test_json_has_equal_bytes_for_equal_records(domainwise: Command, tmp_path: Path) -> None:
    """Whatever the order of their folders, how long they took, and where they lie."""
    first = domainwise("table", write_sweep(tmp_path / "a"), "--json", "--selection", "all")
    second = domainwise(
        "table", write_sweep(tmp_path / "b", backwards=True, seconds=7.25), "--json", "--selection", "all"
    )
    assert first.status == 0 and first.out == second.out
    assert not re.search(r"second|time|NaN|Infinity|7\.25", first.out) and str(tmp_path) not in first.out


def test_all_rules_side_by_side(domainwise: Command, tmp_path: Path) -> None:
    for unseen in (*COLOURS, *combinations(COLOURS, 2)):
        write_done_run(tmp_path, colours("ERM", unseen), 0.5)
    result = domainwise("table", tmp_path, "--selection", "all", "--format", "csv")
    rules = {line["selection"] for line in csv.DictReader(io.StringIO(result.out))}
    expected = {"training-domain", "leave-one-domain-out", "oracle", "worst-domain"}
    assert rules == expected, "there is no validation domain, and no recall of classes was recorded"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("table runs --format tex", "unknown format 'tex': did you mean 'latex'"),
        ("table runs --selection orakel", "unknown selection rule 'orakel': did you mean 'oracle'"),
        ("table runs --paper table99", "unknown table of the paper 'table99'"),
        ("table runs --baseline ERN", "unknown .*'ERN': did you mean 'ERM'"),
        ("table runs --selection validation-domain", "runs: nothing to show; .*validation-domain validation"),
        ("table empty", "empty: nothing to show; give the folder of a sweep"),
        ("table nowhere", "nowhere is not a folder: give the folder of a sweep"),
        ("table file", "file is not a folder"),
        ("status nowhere", "nowhere is not a folder: give the folder of a sweep"),
        ("status empty", "empty holds neither a plan nor a run"),
        ("status foreign", r'foreign/plans/x.json: "dataset" is missing'),
    ],
)
def test_mistakes_are_one_line(domainwise: Command, tmp_path: Path, arguments: str, complaint: str) -> None:
    write_done_run(tmp_path / "runs", colours("ERM", "+90%"), 0.5)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "foreign" / "plans").mkdir(parents=True)
    (tmp_path / "foreign" / "plans" / "x.json").write_text("{}")
    result = domainwise(*arguments.split())
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert re.match(f"error: {complaint}", result.err)


# where a sweep stands


def test_settings_of_one_draw_that_differ_are_more_to_choose_from(tmp_path: Path) -> None:
    for eps in (1.0, 9.0):
        for unseen in COLOURS:
            write_done_run(tmp_path, colours("DAT", unseen, hparams={"eps": eps}), 0.1 * eps)
    (table,) = tables(collect(tmp_path), "oracle")
    assert [(row.draws, row.trials) for row in table.rows] == [(2, 1)]


PLAN = plan_sweep("ColoredMNIST", ("ERM",), draws=2, trials=1, steps=21, evaluate_every=20)


@pytest.fixture
def standing(tmp_path: Path) -> Path:
    """Of six runs one is done, one failed, one diverged, one has begun, and two have not."""
    PLAN.save(tmp_path)
    done, failed, diverged, begun, *_ = PLAN.runs()
    write_done_run(tmp_path, done, 0.3, train_out=0.8)
    for run, state, reason in (
        (failed, "failed", "RuntimeError: out of memory"),
        (diverged, "diverged", "the loss was not finite by step 7"),
    ):
        folder = RunFolder(tmp_path, run)
        folder.create()
        folder.append([Status(run.id, 7, state, reason)])  # type: ignore[arg-type]
    RunFolder(tmp_path, begun).create()
    return tmp_path


def test_status_counts_lists_reasons_and_estimates(domainwise: Command, standing: Path) -> None:
    done, failed, diverged, begun, *_ = PLAN.runs()
    with RunLock(RunFolder(standing, begun).path):
        result = domainwise("status", standing)
    assert result.status == 0
    first, second = result.out.splitlines()
    assert first == "6 runs: 1 done, 1 running, 1 failed, 1 diverged, 2 remaining, about 3 min 00 s left"
    assert "best by training-domain validation" in second and "draw 0, trial 0: 80.0 %; 30.0 % on +90%" in second
    assert f"{failed.id} failed at step 7: RuntimeError: out of memory" in result.err
    assert f"{diverged.id} diverged at step 7: the loss was not finite by step 7" in result.err
    assert "--retry" in result.err and done.id not in result.err


@pytest.mark.parametrize("reason", ["[enforce fail at alloc_cpu.cpp:114] no memory", "cannot read [/data]: [Errno 5]"])
def test_reasons_are_shown_as_they_are(domainwise: Command, tmp_path: Path, reason: str) -> None:
    PLAN.save(tmp_path)
    mark_failed(tmp_path, PLAN.runs()[0], reason)
    result = domainwise("status", tmp_path)
    assert result.status == 0 and f"{PLAN.runs()[0].id} failed at step 0: {reason}\n" in result.err


def test_tables_and_the_best_so_far_go_by_the_rule_of_the_dataset(domainwise: Command, tmp_path: Path) -> None:
    plan = plan_sweep("NICO", ("ERM",), draws=2, trials=1, steps=21, evaluate_every=20)
    plan.save(tmp_path)
    for run, accuracy in zip(plan.runs(), (0.7, 0.6), strict=True):
        write_done_run(tmp_path, run, accuracy)
    (table,) = standard_json(domainwise("table", tmp_path, "--json").out)["tables"]
    assert table["selection"] == "validation-domain" and table["rows"][0]["cells"]["test"]["mean"] == 70
    status = domainwise("status", tmp_path).out
    assert "best by validation-domain validation so far: ERM, draw 0, trial 0: 70.0 %; 70.0 % on test" in status


def test_status_as_json(domainwise: Command, standing: Path) -> None:
    done, failed, diverged, *_ = PLAN.runs()
    found = standard_json(domainwise("status", standing, "--json").out)
    assert {name: found[name] for name in ("total", "done", "running", "remaining")} == {
        "total": 6, "done": 1, "running": 0, "remaining": 3,
    }  # fmt: skip
    assert found["seconds_left"] == 180 and found["best"] == {
        "run": done.id, "method": "ERM", "draw": 0, "trial": 0, "selection": "training-domain", "score": 0.8,
        "unseen": {"+90%": 0.3},
    }  # fmt: skip
    assert found["failed"] == [{"run": failed.id, "reason": "RuntimeError: out of memory"}]
    assert found["diverged"] == [{"run": diverged.id, "reason": "the loss was not finite by step 7"}]


def test_status_of_a_plan_not_begun(domainwise: Command, tmp_path: Path) -> None:
    PLAN.save(tmp_path)
    result = domainwise("status", tmp_path)
    assert (result.status, result.out, result.err) == (0, "6 runs: 0 done, 0 running, 0 failed, 6 remaining\n", "")
    found = standard_json(domainwise("status", tmp_path, "--json").out)
    assert found["remaining"] == 6 and found["seconds_left"] is None and found["best"] is None


def test_status_without_a_plan_counts_what_has_begun(domainwise: Command, standing: Path) -> None:
    """As compare, demo and train leave their folders."""
    done, *_ = PLAN.runs()
    shutil.rmtree(standing / "plans")
    result = domainwise("status", standing)
    first, second = result.out.splitlines()
    assert result.status == 0 and first.startswith("4 runs: 1 done, 0 running, 1 failed, 1 diverged, 1 remaining")
    assert "80.0 %; 30.0 % on +90%" in second
    assert "note: no plan is kept here" in result.err and "RuntimeError: out of memory" in result.err
    assert standard_json(domainwise("status", standing, "--json").out)["total"] == 4
    one = domainwise("status", standing / done.id)
    assert one.status == 0 and one.out.startswith("1 run: 1 done, 0 running, 0 failed, 0 remaining\n")


def test_watching_a_sweep_that_has_ended_returns_at_once(domainwise: Command, tmp_path: Path) -> None:
    PLAN.save(tmp_path)
    for run in PLAN.runs():
        write_done_run(tmp_path, run, 0.5)
    assert "6 runs: 6 done, 0 running, 0 failed, 0 remaining\n" in domainwise("status", tmp_path, "--watch").out


def test_status_counts_damaged_records_as_failed_and_says_which(domainwise: Command, standing: Path) -> None:
    file = RunFolder(standing, PLAN.runs()[0]).records_file
    file.write_bytes(b"garbage\n" + file.read_bytes())
    result = domainwise("status", standing)
    assert result.status == 0 and "2 failed" in result.out and f"{file}, line 1: cut short or no JSON" in result.err


def test_a_folder_with_brackets_in_its_name_is_named_in_notes(domainwise: Command, tmp_path: Path) -> None:
    folder = tmp_path / "runs [old]"
    write_sweep(folder)
    (folder / "foreign").mkdir()
    (folder / "foreign" / "run.json").write_text("{}")
    result = domainwise("table", folder, "--format", "csv")
    assert result.status == 0 and str(folder / "foreign") in result.err


DURATIONS = {0: "0 s", 59.4: "59 s", 59.6: "1 min 00 s", 3599.6: "1 h 00 min", 86_399: "23 h 59 min", 90_000: "1 d 1 h"}


@pytest.mark.parametrize(("seconds", "words"), DURATIONS.items())
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_of_one_thing_there_is_no_plural() -> None:
    assert [counted(number, "run") for number in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert (counted(1, "class"), counted(9, "class")) == ("1 class", "9 classes")


def test_a_table_of_candidates_does_not_call_them_draws(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path)
    plan = plan_sweep(
        "ColoredMNIST", ("ERM", "DAT"), draws=2, trials=2, steps=21, evaluate_every=20, search="candidates"
    )
    plan.save(folder)
    (table,) = tables(collect(folder), "oracle")
    assert "2 candidates x 2 trials" in table.as_table().markdown() and "draw" not in table.caption
    replace(plan, search="draws").save(folder)
    (table,) = tables(collect(folder), "oracle")
    assert "2 draws x 2 trials" in table.as_table().markdown(), "only if all plans are of candidates"


# runs that are not finished


@pytest.fixture
def half_done(tmp_path: Path) -> Path:
    """A sweep in which one run has failed and one goes on, both after a first evaluation far below the others."""
    folder = write_sweep(tmp_path / "runs")
    for trial, ended in enumerate(("failed", "")):
        run = colours("ERM", "+90%", trial=2 + trial)
        write_run(folder, run, {"+90% in": [0.01]}, ended=ended, steps=(0,))
    return folder


def test_runs_that_are_not_finished_are_left_out_and_named(half_done: Path, domainwise: Command) -> None:
    whole = domainwise("table", write_sweep(half_done.parent / "whole"), "--format", "json")
    told = domainwise("table", half_done, "--format", "json")
    (ours,), (expected,) = (standard_json(result.out)["tables"] for result in (told, whole))
    assert ours["rows"] == expected["rows"] and not ours["partial"]
    (sentence,) = ours["completeness"]
    assert sentence.startswith("left out: 1 run not finished (") and "1 run failed (" in sentence
    for form in ("terminal", "markdown", "latex", "csv"):
        told = domainwise("table", half_done, "--format", form)
        assert "left out: 1 run not" in " ".join((told.out + told.err).split()), form
    partial = domainwise("table", half_done, "--partial", "--format", "markdown").out
    assert "per cent (partial)" in partial and "partial, with 1 run not finished (" in partial and "26.0" in partial
    (table,) = domainwise_table(half_done)
    assert "left out" in table.caption and domainwise_table(half_done, partial=True)[0].partial


def test_nothing_finished_is_one_line_that_names_the_option(tmp_path: Path, domainwise: Command) -> None:
    for trial in range(2):
        write_run(tmp_path / "runs", colours("ERM", "+90%", trial=trial), ended="")
    for words in (("table",), ("figure", "methods")):
        told = domainwise(*words, tmp_path / "runs")
        assert told.is_one_line_error and told.err.rstrip().endswith("(--partial)"), told.err
        assert "none of 2 runs there is finished (2 not finished)" in told.err
    assert domainwise("table", tmp_path / "runs", "--partial").status == 0


def test_figures_and_pages_say_which_runs_they_leave_out(half_done: Path, domainwise: Command) -> None:
    for extra, sentence in ((), "left out: 1 run"), (("--partial",), "partial, with 1 run"):
        drawn = domainwise("figure", "methods", half_done, "--out", half_done / "x.png", *extra)
        assert drawn.status == 0 and sentence in drawn.out
        page = domainwise("report", half_done, "--no-models", "--out", half_done / "x.html", *extra)
        assert sentence in page.err and sentence in (half_done / "x.html").read_text()


def test_status_names_a_run_that_cannot_be_read(tmp_path: Path, domainwise: Command) -> None:
    folder = write_sweep(tmp_path / "runs")
    bad = next(folder.glob("*/records.jsonl"))
    bad.unlink()
    bad.mkdir()
    told = domainwise("status", folder)
    assert told.status == 0 and f"{bad.parent.name}: skipped (records.jsonl cannot be read" in told.err
    plan_sweep("ColoredMNIST", ("ERM",), draws=1, trials=1).save(folder)
    (folder / "plans" / "broken.json").mkdir()
    told = domainwise("status", folder)
    assert told.status == 0 and "broken.json cannot be read (not a regular file)" in told.err


def test_watching_in_a_pipe_prints_lines_and_ends(
    tmp_path: Path, domainwise: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = colours("ERM", "+90%")
    folder = write_run(tmp_path, run, ended="")
    monkeypatch.setattr(status.time, "sleep", lambda _: folder.append([Status(run.id, 20, "done", "")]))
    told = domainwise("status", tmp_path, "--watch").out.splitlines()
    assert [line.split(":")[1].split(",")[0] for line in told[:3]] == [" 0 done", " 0 done", " 1 done"]
    assert all(line.isprintable() for line in told)
