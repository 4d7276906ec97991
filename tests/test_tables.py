"""Tables in every form, the paper's numbers beside ours, and where a sweep stands, from records made by hand."""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from domainwise.claims import Claim
from domainwise.cli import main
from domainwise.data import DATASETS, Dataset
from domainwise.paper.presets import reproduction
from domainwise.records import Record, RunFolder, Status
from domainwise.report import formats
from domainwise.report.beside import compare
from domainwise.report.statistics import Scores
from domainwise.report.tables import AccuracyTable, tables
from domainwise.report.words import duration
from domainwise.runs import Run
from domainwise.sweep.collection import collect
from domainwise.sweep.events import Settings, mark_failed
from domainwise.sweep.plan import Plan, planned_runs

COLOURS = ("+90%", "+80%", "-90%")
FORMATS = ("terminal", "markdown", "latex", "csv", "json")


def keep(
    folder: Path, run: Run, accuracy: float, *, train_out: float = 0.5, unseen_out: float = 0.5, seconds: float = 60.0
) -> RunFolder:
    """A run done in two evaluations: `in` splits at this accuracy, `out` splits first at 0.6, then at these."""
    kept = RunFolder(folder, run)
    kept.create()
    values = {(domain, "out"): train_out for domain in run.train_domains}
    for domain in (*run.validation_domains, *run.test_domains):
        values |= {(domain, "in"): accuracy, (domain, "out"): unseen_out}
    for step in (0, run.steps - 1):
        now = {part: value if step or part[1] == "in" else 0.6 for part, value in values.items()}
        kept.append([Record(run.id, step, *part, value, 1.0, seconds * (step > 0)) for part, value in now.items()])
    kept.append([Status(run.id, run.steps - 1, "done", "")])
    return kept


def colours(algorithm: str, unseen: str | Sequence[str], **facts: Any) -> Run:
    return Run.plan("ColoredMNIST", algorithm, unseen, **{"steps": 21, "evaluate_every": 20, **facts})


def sweep(folder: Path, backwards: bool = False, seconds: float = 60.0, **facts: Any) -> Path:
    """ERM and DAT on ColoredMNIST, two draws, two trials: ERM has 50 % and 52 %, DAT ten more, on every domain."""
    runs = [
        (colours(algorithm, unseen, draw=draw, trial=trial, **facts), 0.5 + 0.1 * (algorithm == "DAT") + 0.02 * trial)
        for algorithm in ("ERM", "DAT")
        for unseen in COLOURS
        for draw in range(2)
        for trial in range(2)
    ]
    for run, accuracy in runs[::-1] if backwards else runs:
        keep(folder, run, accuracy, seconds=seconds)
    return folder


class Result(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def domainwise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        code = stop.value.code
        return Result(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


def standard_json(text: str) -> Any:
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


# forms

SCORES: Scores = {
    "ERM": {"photo": {0: 70.0, 1: 72.0}, "sketch": {0: 60.0, 1: 60.0}},
    "DAT": {"photo": {0: 69.0, 1: 70.0}, "sketch": {0: 65.0, 1: 64.0}},
    "AT": {"photo": {0: 31 / 3}},
}
TABLE = AccuracyTable.of("PACS", "oracle", SCORES, ("ERM", "DAT", "AT"))
NAMES = ("a|b", "50% & _more_ #1", r"{x} $y$ \z ~ ^", "[bold]", "ä → ö")
AWKWARD: dict[str, dict[int, float]] = {name: {0: 10.0 * i, 1: 10.0 * i} for i, name in enumerate(NAMES)}
AWKWARD_TABLE = AccuracyTable.of("My|data_[/1]", "oracle", {"ERM": AWKWARD, "DAT (l2, a|b_c [x])": AWKWARD})


def printed(table: AccuracyTable, width: int = 120, style: str | None = None) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=style is not None, color_system=style)  # type: ignore[arg-type]
    console.print(formats.terminal(table))
    return out.getvalue()


def test_a_table_holds_cells_averages_and_differences_by_hand() -> None:
    erm, dat, at = TABLE.rows
    assert (erm.cells["photo"].mean, erm.cells["photo"].n) == (71.0, 2)
    assert erm.cells["photo"].error == pytest.approx(1 / 2**0.5) and erm.average and erm.average.mean == 65.5
    assert dat.difference and (dat.difference.mean, dat.difference.ahead, dat.difference.behind) == (1.5, 2, 2)
    assert at.average is None and "sketch" not in at.cells and erm.difference is None
    assert "oracle validation" in TABLE.caption and "PACS" in TABLE.title


def test_the_best_of_every_column_is_bold_in_a_terminal() -> None:
    bold = re.findall(r"\x1b\[1m([\d.]+ ± [\d.]+)\x1b\[0m", printed(TABLE, style="standard"))
    assert bold == ["71.0 ± 0.7", "64.5 ± 0.4", "67.0 ± 0.0"]


def test_a_terminal_table_says_what_is_missing_and_how_points_were_chosen() -> None:
    text = printed(TABLE)
    assert "not run" in text and "minus ERM" in text and "oracle validation" in text
    assert all(name in printed(AWKWARD_TABLE, 200) for name in [*AWKWARD, "My|data_[/1]", "DAT (l2, a|b_c [x])"])


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_is_cut_off_however_long_the_names_of_domains(width: int) -> None:
    domains = ("art_painting", "cartoon", "photo", "sketch")
    columns = [f"{a} → {b}" for a in domains for b in domains if a != b]
    by_column = {column: {0: 10.0 + i, 1: 11.0 + i} for i, column in enumerate(columns)}
    table = AccuracyTable.of("PACS", "oracle", {"ERM": by_column, "DAT": {**by_column, columns[0]: {0: 99.0}}})
    text = printed(table, width)
    for name, line in formats.cells(table):
        assert name in text and all(cell in text for cell, _ in line)


def fields(line: str) -> list[str]:
    """The cells of a line of a Markdown table."""
    return [field.strip() for field in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize(
    "table",
    [TABLE, AccuracyTable.of("Mine", "oracle", {"ERM": AWKWARD}), AWKWARD_TABLE],
    ids=["plain", "domains", "methods"],
)
def test_markdown_has_as_many_cells_in_every_line(table: AccuracyTable) -> None:
    lines = [line for line in formats.markdown(table).splitlines() if line.startswith("|")]
    assert [len(fields(line)) for line in lines] == [len(formats.headings(table))] * (2 + len(table.rows))
    assert [fields(line)[0].replace(r"\|", "|") for line in lines[2:]] == [row.method for row in table.rows]
    assert table.caption in formats.markdown(table)


def test_markdown_marks_the_best() -> None:
    (erm,) = [fields(line) for line in formats.markdown(TABLE).splitlines() if line.startswith("| ERM")]
    assert erm == ["ERM", "**71.0 ± 0.7**", "60.0 ± 0.0", "65.5 ± 0.4", ""]


@pytest.mark.parametrize("table", [TABLE, AWKWARD_TABLE], ids=["plain", "awkward"])
def test_latex_is_balanced_and_escaped(table: AccuracyTable) -> None:
    text = formats.latex(table)
    code = re.sub(r"(?<!\\)%.*", "", text)
    bare = re.sub(r"\\[&%$#_{}\\]", "", code)
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0 and "#" not in bare and "±" not in bare
    assert not re.search(r"[~→_]|\^(?!\{)", bare)
    body = code.split(r"\toprule")[1].split(r"\bottomrule")[0].replace(r"\midrule", "")
    rows = [row for row in body.split(r" \\") if row.strip()]
    counts = [len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows]
    assert counts == [len(formats.headings(table))] * (1 + len(table.rows))
    assert re.search(r"\\begin\{tabular\}\{lr+\}", code) and table.caption in text


def test_csv_reads_back() -> None:
    lines = list(csv.DictReader(io.StringIO(formats.comma_separated([TABLE, AWKWARD_TABLE]))))
    found = {(line["dataset"], line["method"], line["domain"]): line for line in lines}
    assert len(found) == len(lines) == (3 + 3 + 1) + 2 * 6
    for table in (TABLE, AWKWARD_TABLE):
        for row in table.rows:
            for column, value in row.cells.items():
                line = found[table.dataset, row.method, column]
                read = float(line["mean"]), float(line["error"]), int(line["trials"])
                assert read == (value.mean, value.error, value.n)
                assert line["selection"] == "oracle"


# the command


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_is_printed_alone(domainwise: Command, tmp_path: Path, form: str) -> None:
    sweep(tmp_path / "runs")
    (tmp_path / "runs" / "foreign").mkdir()
    (tmp_path / "runs" / "foreign" / "run.json").write_text("{}")
    result = domainwise("table", "runs", "--format", form)
    assert result.status == 0 and result.err.startswith("note: ") and result.err.count("\n") == 1
    plain = result.out.replace(r"\pm", "±").replace(r"\%", "%")
    assert "training-domain" in plain and ("51.0 ± 0.7" in plain or form in ("csv", "json"))
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
    first = domainwise("table", sweep(tmp_path / "a"), "--json", "--selection", "all")
    second = domainwise("table", sweep(tmp_path / "b", backwards=True, seconds=7.25), "--json", "--selection", "all")
    assert first.status == 0 and first.out == second.out
    assert not re.search(r"second|time|NaN|Infinity|7\.25", first.out) and str(tmp_path) not in first.out


def test_all_rules_side_by_side(domainwise: Command, tmp_path: Path) -> None:
    for unseen in (*COLOURS, *combinations(COLOURS, 2)):
        keep(tmp_path, colours("ERM", unseen), 0.5)
    result = domainwise("table", tmp_path, "--selection", "all", "--format", "csv")
    rules = {line["selection"] for line in csv.DictReader(io.StringIO(result.out))}
    assert rules == {"training-domain", "leave-one-domain-out", "oracle"}, "there is no validation domain"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("table runs --format tex", "unknown format 'tex': did you mean 'latex'"),
        ("table runs --selection orakel", "unknown selection rule 'orakel': did you mean 'oracle'"),
        ("table runs --paper table99", "unknown table of the paper 'table99'"),
        ("table runs --paper cmnist --format csv", "--paper is shown as terminal, markdown or json, not csv"),
        ("table runs --baseline ERN", "unknown .*'ERN': did you mean 'ERM'"),
        ("table runs --selection validation-domain", "runs: nothing to show; .*validation-domain validation"),
        ("table empty", "empty: nothing to show"),
        ("table nowhere", "nowhere is not a folder: give the folder of a sweep"),
        ("table file", "file is not a folder"),
        ("status nowhere", "nowhere is not a folder: give the folder of a sweep"),
        ("status runs", "runs holds no plan of a sweep"),
        ("status foreign", r"foreign/plans/x.json is not a plan of this version"),
    ],
)
def test_mistakes_are_one_line(domainwise: Command, tmp_path: Path, arguments: str, complaint: str) -> None:
    keep(tmp_path / "runs", colours("ERM", "+90%"), 0.5)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "foreign" / "plans").mkdir(parents=True)
    (tmp_path / "foreign" / "plans" / "x.json").write_text("{}")
    result = domainwise(*arguments.split())
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert re.match(f"error: {complaint}", result.err)


# beside the paper


def of_paper(cells: list[dict[str, Any]], **facts: object) -> list[dict[str, Any]]:
    return [cell for cell in cells if all(cell["paper"][name] == value for name, value in facts.items())]


@pytest.mark.parametrize("variant", ["", "paper"])
def test_cells_are_matched_by_dataset_algorithm_domain_and_selection(
    domainwise: Command, tmp_path: Path, variant: str
) -> None:
    sweep(tmp_path, variant=variant)
    keep(tmp_path, Run.plan("ColoredMNIST-embedded", "UAT", "+90%", steps=21, evaluate_every=20), 0.9)
    found = standard_json(domainwise("table", tmp_path, "--paper", "cmnist", "--json").out)
    assert (found["number"], found["label"], len(found["cells"])) == ("9", "cmnist", 24)
    for algorithm, mean in (("ERM", 51.0), ("DAT", 61.0)):
        cells = of_paper(found["cells"], algorithm=algorithm)
        assert {(cell["paper"]["selection"], cell["paper"]["domain"]) for cell in cells} == {
            (rule, domain) for rule in ("training-domain", "oracle") for domain in (*COLOURS, "average")
        }
        for cell in cells:
            assert (cell["mean"], cell["error"]) == (pytest.approx(mean), pytest.approx(1 / 2**0.5))
            assert (cell["draws"], cell["trials"], cell["steps"]) == (2, 2, 21)
    assert all(cell["mean"] is None and cell["steps"] == 0 for cell in of_paper(found["cells"], algorithm="UAT"))


@pytest.mark.parametrize(("paper", "ours", "missing"), [("cmnist", 16, 8), ("table1", 2, 70)])
@pytest.mark.parametrize("form", ["terminal", "markdown"])
def test_what_was_not_run_is_marked(
    domainwise: Command, tmp_path: Path, paper: str, form: str, ours: int, missing: int
) -> None:
    result = domainwise("table", sweep(tmp_path / "runs"), "--paper", paper, "--format", form)
    assert result.status == 0 and result.err == ""
    lines = [line for line in result.out.splitlines() if "ColoredMNIST" in line or "not run" in line]
    assert sum("not run" in line for line in lines) == missing
    found = [line for line in lines if "2 x 2 x 21" in line]
    assert len(found) == ours and all(re.search(r"(51|61)\.0 ± 0\.7", line) for line in found)
    (dat,) = [line for line in found if "DAT" in line and "average" in line and "oracle" in line]
    assert "68.4 ± 2.0" in dat and "-7.4" in dat


def test_every_cell_is_selected_by_the_rule_of_the_paper(tmp_path: Path) -> None:
    """Training domains prefer the first draw, the oracle the second."""
    for unseen in COLOURS:
        keep(tmp_path, colours("DAT", unseen), 0.4, train_out=0.9)
        keep(tmp_path, colours("DAT", unseen, draw=1), 0.7, unseen_out=0.9)
    found = {c.paper.selection: c.mean for c in compare("cmnist", collect(tmp_path)) if c.method == "DAT"}
    assert found == pytest.approx({"training-domain": 40.0, "oracle": 70.0})
    cells = {c.method: c for c in compare("table1", collect(tmp_path)) if c.paper.dataset == "ColoredMNIST"}
    assert cells["DAT"].mean == pytest.approx(70.0) and cells["DAT"].effort == "2 x 1 x 21"
    assert cells["IRM"].mean is None and cells["IRM"].effort == ""


def test_methods_trained_for_different_numbers_of_steps_are_paired_in_one_table(tmp_path: Path) -> None:
    """As ERM (5,001) and DAT (10,001) on CMNIST in the paper; a method searched twice keeps its tables apart."""
    for name, steps, accuracy in (("ERM", 21, 0.5), ("DAT", 201, 0.6)):
        for unseen in COLOURS:
            keep(tmp_path, colours(name, unseen, steps=steps), accuracy)
    (table,) = tables(collect(tmp_path), "oracle")
    assert [(row.method, row.steps) for row in table.rows] == [("ERM", 21), ("DAT", 201)]
    assert table.rows[1].difference is not None and table.rows[1].difference.mean == pytest.approx(10.0)
    assert "ERM: 21 steps" in table.caption and "DAT: 201 steps" in table.caption
    for unseen in COLOURS:
        keep(tmp_path, colours("DAT", unseen, steps=21), 0.4)
    assert [[row.method for row in table.rows] for table in tables(collect(tmp_path), "oracle")] == [
        ["ERM", "DAT"],
        ["DAT"],
    ]


def test_of_two_searches_the_one_with_more_steps_stands_beside_the_paper(tmp_path: Path) -> None:
    for steps, accuracy in ((21, 0.3), (201, 0.6)):
        for unseen in COLOURS:
            keep(tmp_path, colours("DAT", unseen, steps=steps), accuracy)
    (cell,) = [c for c in compare("bench", collect(tmp_path)) if c.mean is not None]
    assert cell.steps == 201 and cell.mean == pytest.approx(60.0)


SINGLE = {("+90%", "+80%"): 0.8, ("+90%", "-90%"): 0.2, ("+80%", "+90%"): 0.9, ("+80%", "-90%"): 0.3,
          ("-90%", "+90%"): 0.1, ("-90%", "+80%"): 0.4}  # fmt: skip


def test_single_source_beside_the_paper(tmp_path: Path) -> None:
    for (source, unseen), accuracy in SINGLE.items():
        keep(tmp_path, colours("ERM", unseen, train_domains=[source], setting="single"), accuracy)
    cells = {(c.paper.train, c.paper.domain): c.mean for c in compare("cmnistes", collect(tmp_path))}
    assert {pair: cells[pair] for pair in SINGLE} == pytest.approx({pair: 100 * v for pair, v in SINGLE.items()})
    averages = {source: cells[source, "average"] for source in COLOURS}
    assert averages == pytest.approx({"+90%": 50.0, "+80%": 60.0, "-90%": 25.0})
    (whole,) = [c for c in compare("single", collect(tmp_path)) if c.mean is not None]
    assert whole.mean == pytest.approx(45.0) and whole.paper.algorithm == "ERM"


@pytest.fixture
def nico(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset(
        "NICO", "A toy.", ("train1", "train2", "validation", "test"), ("animal", "vehicle"), (1, 8, 8), "small", "mlp",
        21, lambda _: pytest.fail("loaded"), validation=("validation",), unseen=("test",), held_out=0.0,
    )  # fmt: skip
    monkeypatch.setitem(DATASETS._things, "NICO", data)


@pytest.mark.parametrize(
    ("table", "expected"), [("single", {None: 65.0}), ("nicods", {"train1": 60.0, "train2": 70.0, None: 65.0})]
)
def test_nico_from_a_single_source_has_an_average_over_its_training_domains(
    nico: None, tmp_path: Path, table: str, expected: dict[str | None, float]
) -> None:
    for source, accuracy in (("train1", 0.6), ("train2", 0.7)):
        run = Run.plan("NICO", "DAT", "test", train_domains=[source], setting="single", steps=21, evaluate_every=20)
        keep(tmp_path, run, accuracy)
    cells = [c for c in compare(table, collect(tmp_path)) if (c.paper.dataset, c.paper.algorithm) == ("NICO", "DAT")]
    assert {c.paper.train: c.mean for c in cells} == pytest.approx(expected)


def test_algorithms_searched_in_the_papers_space_are_compared_too(tmp_path: Path) -> None:
    (table,) = tables(collect(sweep(tmp_path, variant="paper")), "training-domain")
    assert [row.method for row in table.rows] == ["ERM (paper)", "DAT (paper)"]
    assert table.rows[1].difference is not None and table.rows[1].difference.n == 6


SHRUNK = {"draws": 1, "trials": 1, "shrink_steps": 21, "algorithms": ["DAT"]}


@pytest.fixture
def reproduce(domainwise: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command on a folder where all its runs are done."""
    monkeypatch.setattr(Settings, "check", lambda *_, **__: None)
    for run in planned_runs(reproduction("cmnist", **SHRUNK)):
        keep(tmp_path, run, 0.6)
    size = ["--hparams", "1", "--trials", "1", "--steps", "21", "--algorithms", "DAT"]
    return lambda *options: domainwise("reproduce", "cmnist", *size, "--out", tmp_path, *options)


def test_a_reproduction_says_by_how_much_it_is_smaller(reproduce: Command) -> None:
    smaller = "1 of 20 draws, 1 of 3 trials, 21 of 10001 steps"
    result = reproduce()
    assert result.status == 0 and f"({smaller}: smaller than the paper's search)" in result.err
    assert f"Ours: {smaller}." in result.out and "1 x 1 x 21" in result.out
    dry = reproduce("--dry-run")
    assert dry.out.startswith("3 runs, 0 still to do") and smaller in " ".join(dry.out.split())


def test_a_reproduction_as_json_is_one_object(reproduce: Command) -> None:
    found = standard_json(reproduce("--json").out)
    assert found["shrunk"] == "1 of 20 draws, 1 of 3 trials, 21 of 10001 steps" and len(found["cells"]) == 24
    assert standard_json(reproduce("--json", "--dry-run").out)["missing"] == 0


# where a sweep stands

PLAN = Plan("ColoredMNIST", ("ERM",), draws=2, trials=1, steps=21, evaluate_every=20)


@pytest.fixture
def standing(tmp_path: Path) -> Path:
    """Of six runs one is done, one failed, one diverged, one has begun, and two have not."""
    PLAN.save(tmp_path)
    done, failed, diverged, begun, *_ = PLAN.runs()
    keep(tmp_path, done, 0.3, train_out=0.8)
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
    with Claim(RunFolder(standing, begun).path):
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


def test_status_as_json(domainwise: Command, standing: Path) -> None:
    _, failed, diverged, *_ = PLAN.runs()
    found = standard_json(domainwise("status", standing, "--json").out)
    assert {name: found[name] for name in ("total", "done", "running", "remaining")} == {
        "total": 6, "done": 1, "running": 0, "remaining": 3,
    }  # fmt: skip
    assert found["failed"] == [{"run": failed.id, "reason": "RuntimeError: out of memory"}]
    assert found["diverged"] == [{"run": diverged.id, "reason": "the loss was not finite by step 7"}]


def test_status_of_a_plan_not_begun(domainwise: Command, tmp_path: Path) -> None:
    PLAN.save(tmp_path)
    result = domainwise("status", tmp_path)
    assert (result.status, result.out, result.err) == (0, "6 runs: 0 done, 0 running, 0 failed, 6 remaining\n", "")


def test_watching_a_sweep_that_has_ended_returns_at_once(domainwise: Command, tmp_path: Path) -> None:
    PLAN.save(tmp_path)
    for run in PLAN.runs():
        keep(tmp_path, run, 0.5)
    assert "6 runs: 6 done, 0 running, 0 failed, 0 remaining\n" in domainwise("status", tmp_path, "--watch").out


def test_status_of_damaged_records_says_which(domainwise: Command, standing: Path) -> None:
    file = RunFolder(standing, PLAN.runs()[0]).records_file
    file.write_bytes(b"garbage\n" + file.read_bytes())
    result = domainwise("status", standing)
    assert result.status == 2 and f"{file}, line 1: not a record" in result.err and result.err.count("\n") == 1


def test_a_folder_with_brackets_in_its_name_is_named_in_notes(domainwise: Command, tmp_path: Path) -> None:
    folder = tmp_path / "runs [old]"
    sweep(folder)
    (folder / "foreign").mkdir()
    (folder / "foreign" / "run.json").write_text("{}")
    result = domainwise("table", folder, "--format", "csv")
    assert result.status == 0 and str(folder / "foreign") in result.err


DURATIONS = {0: "0 s", 59.4: "59 s", 59.6: "1 min 00 s", 3599.6: "1 h 00 min", 86_399: "23 h 59 min", 90_000: "1 d 1 h"}


@pytest.mark.parametrize(("seconds", "words"), DURATIONS.items())
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
