"""Pages and the records they stand on: what a place shows is what the records say, and what is missing is not run."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from documents import ROOT
from domainwise.analysis.shortcuts import ColourUse
from domainwise.core.errors import UserError
from domainwise.paper.tables import find_table
from domainwise.protocol.records import PenaltyRecord
from domainwise.protocol.run_folder import RunFolder
from domainwise.reports.paper_comparison import ComparedCell
from domainwise.reports.publish import publish
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.published import read_published
from evidence_tables import verdict
from generated_docs import NO_BREAK, PLACE, answer, filled
from handmade_records import COLOURS, colours, write_done_run, write_sweep
from published_results import Library
from result_tables import records

PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if PLACE.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_show_what_the_records_say(page: Path) -> None:
    text = page.read_text()
    assert filled(text, ROOT / "results") == text, "make docs brings it up to date"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_line_of_prose_begins_with_a_place(page: Path) -> None:
    """Markdown would take it for the beginning of a block, and break the paragraph there."""
    lines = page.read_text().splitlines()
    assert not [line for line in lines if re.match(r" *<!-- results: .*<!-- /results -->", line)]


def test_every_published_experiment_is_shown() -> None:
    places = (match["words"] for page in PAGES for match in PLACE.finditer(page.read_text()))
    shown = {word for words in places for word in re.findall(r"[\w-]+", words)}
    published = {path.parent.name for path in (ROOT / "results").glob("*/runs.jsonl.gz")}
    assert published <= shown


def test_what_the_guide_says_of_methods_is_what_was_measured() -> None:
    """The last column of its table: "BackgroundDigits: CORAL clearly ahead; DANN, MMD clearly behind"."""
    folders = {"BackgroundDigits": "backgrounds", "ColoredMNIST": "cmnist", "Digits": "digits rule=oracle"}
    guide = (ROOT / "docs" / "choosing.md").read_text()
    cells = re.findall(r"\| (\w+): ([^|]*(?:clearly ahead|clearly behind|not clear)) \|$", guide, re.MULTILINE)
    assert len(cells) == 6 and guide.count("| untested |") == 2
    library = Library(ROOT / "results")
    for dataset, said in cells:
        for names, measured in re.findall(r"([\w, ]+?) (clearly ahead|clearly behind|not clear)", said):
            for name in names.strip().split(", "):
                row = answer(ROOT / "results", f'across {name} "{folders[dataset]}" columns=verdict', library)
                assert row.splitlines()[-1] == f"| {dataset} | {measured} |", name


def test_pacs_came_out_again_on_a_gpu() -> None:
    """The lab page says: eight runs that two versions have trained have the same 240 accuracies and losses."""
    first, second = (scores_of_training_weights(ROOT / "results" / name) for name in ("pacs", "pacs-averages"))
    shared = first.keys() & second.keys()
    assert len(shared) == 240 and all(first[key] == second[key] for key in shared)
    assert len({run for run, *_ in shared}) == 8


def scores_of_training_weights(folder: Path) -> dict[tuple[str, int, str, str], tuple[float, float]]:
    """Accuracy and loss by the run without its average, step, domain and split."""
    return {
        (run.training_id, record.step, record.domain, record.split): (record.accuracy, record.loss)
        for published in read_published(folder)
        for run in (published.run,)
        for record in published.records()
        if record.average is None
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ERM and DAT on ColoredMNIST, two draws and trials: ERM has 50 % and 52 %, DAT ten more, on every domain."""
    folder = tmp_path_factory.mktemp("results")
    publish(write_sweep(folder / "runs"), folder / "cmnist")
    return folder


def rows_of(block: str) -> dict[str, list[str]]:
    """The rows of a generated table by their first cell; the headings are the row "headings"."""
    lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ")]
    return {"headings": lines[0]} | {line[0]: [cell.strip() for cell in line[1:]] for line in lines[1:]}


def test_chosen_rows_and_columns(root: Path) -> None:
    rows = rows_of(
        answer(root, "compare cmnist oracle DAT columns=-90%,baseline,average,difference,pairs,p,verdict,effort")
    )
    assert rows["headings"][2:5] == ["ERM", "average", "minus ERM"]
    measured = ["61.0 ± 1.0", "51.0 ± 1.0", "61.0 ± 1.0", "+10.0 ± 0.0", "6", "0.031", "clearly ahead", "2 x 2 x 21"]
    assert rows["DAT"] == measured
    assert rows_of(answer(root, "compare cmnist oracle against=DAT"))["ERM"][1] == "-10.0 ± 0.0"
    with pytest.raises(UserError, match=r"column of cmnist 'colour'.*-90%.*average"):
        answer(root, "compare cmnist oracle DAT columns=colour")


def test_one_method_across_experiments(root: Path) -> None:
    rows = rows_of(answer(root, "across DAT cmnist \"cmnist rule=oracle draws=1 label='one draw'\" nothing"))
    assert rows["headings"] == ["dataset", "DAT", "minus ERM", "pairs", "p", "verdict"]
    assert rows["ColoredMNIST"][-1] == rows["ColoredMNIST, one draw"][-1] == "clearly ahead"
    assert rows["nothing"] == ["not run"] * 5
    assert rows_of(answer(root, "summary cmnist"))["ColoredMNIST"] == ["DAT", "none", "none"]


def test_a_leaderboard_has_the_best_first_and_says_how_to_repeat_it(root: Path) -> None:
    block = answer(root, "leaderboard cmnist")
    rows = rows_of(block)
    assert list(rows) == ["headings", "DAT", "ERM"]
    measured = ["61.0 ± 1.0", "**+10.0 ± 0.0**", "61.0 ± 1.0", "**+10.0 ± 0.0**", "2 x 2 x 21", "1.7 x", "60 s"]
    assert rows["DAT"] == measured
    assert rows["ERM"][1] == "" and rows["ERM"][-2:] == ["1.0 x", "60 s"]
    again = "make reproduce-cmnist AGAIN=1"
    assert block.endswith(
        "Records: [`results/cmnist`](../results/cmnist/runs.jsonl.gz). "
        f"Repeat all: `{again}`; DAT alone: `{again} ONLY=DAT OPTIONS='--hparams 2 --trials 2'`."
    )


def test_rows_with_several_numbers_of_draws_are_repeated_with_those_of_their_experiment(root: Path) -> None:
    entries = Library(root)("cmnist").leaderboard.ranked("oracle")
    mild = [replace(one, rows={name: replace(row, draws=4) for name, row in one.rows.items()}) for one in entries]
    assert "ONLY=DAT OPTIONS='--hparams 2 --trials 2'" in records("cmnist", "DAT", entries)
    assert "ONLY=DAT OPTIONS='--trials 2'" in records("cmnist", "DAT", [*entries, *mild])


def test_differences_over_steps_and_draws(root: Path) -> None:
    rows = rows_of(answer(root, "over cmnist oracle DAT IRM draws=1,2"))
    assert rows["headings"][-2:] == ["1 draws", "2 draws"] and rows["DAT − ERM"] == ["**+10.0 ± 0.0**"] * 2
    assert rows["IRM − ERM"] == ["not run"] * 2


def test_numbers_in_the_cells_of_a_page_are_not_broken(root: Path) -> None:
    page = filled("<!-- results: compare cmnist oracle DAT columns=average,effort -->\n<!-- /results -->", root)
    assert f"61.0{NO_BREAK}±{NO_BREAK}1.0 | 2{NO_BREAK}x{NO_BREAK}2{NO_BREAK}x{NO_BREAK}21 |" in page


def test_a_table(root: Path) -> None:
    block = answer(root, "table cmnist oracle").splitlines()
    assert block[0] == "| algorithm | +90% | +80% | -90% | average | minus ERM |"
    assert block[2].startswith("| ERM | 51.0 ± 1.0 |") and "oracle" in block[-1]


def test_numbers_as_if_runs_had_been_shorter_and_against_another(root: Path, tmp_path: Path) -> None:
    runs = [replace(colours("DAT", unseen), trial=trial) for unseen in COLOURS for trial in (0, 1)]
    for run in runs:
        kept = write_done_run(tmp_path / "runs", run, 0.7)
        lines = kept.lines().replace(b'"accuracy": 0.7', b'"accuracy": 0.3', 1)
        kept.records_file.write_bytes(lines)
    publish(tmp_path / "runs", tmp_path / "short")
    words = "compare short oracle DAT columns=average"
    assert (
        rows_of(answer(tmp_path, words))["DAT"]
        == rows_of(answer(tmp_path, f"{words} until=20"))["DAT"]
        == ["70.0 ± 0.0"]
    )
    assert rows_of(answer(tmp_path, f"{words} until=19"))["DAT"] == ["30.0 ± 0.0"]


def test_numbers_as_if_less_had_been_searched(tmp_path: Path) -> None:
    """All draws look alike where the rule looks, so that it takes the last."""
    for draw, accuracy in ((0, 0.7), (1, 0.6), (2, 0.8)):
        for unseen in COLOURS:
            write_done_run(tmp_path / "runs", replace(colours("DAT", unseen), draw=draw), accuracy)
    publish(tmp_path / "runs", tmp_path / "searched")
    words = "compare searched oracle DAT columns=average"
    found = [rows_of(answer(tmp_path, words + more))["DAT"] for more in (" draws=1", " draws=2", "")]
    assert found == [["70.0"], ["60.0"], ["80.0"]]
    expected = ["70.0", "73.3", "80.0", "not run"]
    assert answer(tmp_path, "by_draws searched DAT draws=1,2,3,4").splitlines()[-1] == (
        f"| oracle | DAT | {' | '.join(expected)} |"
    )
    assert "2 draws x 1 trial" in answer(tmp_path, "table searched oracle draws=2").splitlines()[-1]


def test_accuracy_where_a_method_trained(tmp_path: Path) -> None:
    for trial, accuracy in enumerate((0.6, 0.8)):
        write_done_run(tmp_path / "runs", replace(colours("DAT", "-90%"), trial=trial), 0.1, train_out=accuracy)
    publish(tmp_path / "runs", tmp_path / "trained")
    rows = answer(tmp_path, "memorised trained DAT ERM unseen=-90%").splitlines()
    assert rows[2:] == [
        "| -90% | DAT | not run | 70.0 ± 10.0 | 10.0 ± 0.0 |",
        "| -90% | ERM | not run | not run | not run |",
    ]


def test_what_was_not_run_is_said_to_be_so(root: Path) -> None:
    for words in ("table nothing oracle", "sentence nothing DAT", "audit cmnist oracle", "figure cmnist norms"):
        assert answer(root, words) == "not run"
    with pytest.raises(UserError, match="question"):
        answer(root, "weather cmnist")


def test_the_papers_numbers_and_ours(root: Path) -> None:
    lines = answer(root, "paper cmnist cmnist").splitlines()
    rows = {tuple(line.split(" | ")[:2]): line for line in lines if line.startswith("| DAT")}
    assert rows["| DAT", "-90%"].endswith("| 2 x 2 x 21 |") and "| 61.0 ± 0.7 |" in rows["| DAT", "-90%"]
    counts = rows_of(answer(root, "verdicts cmnist:cmnist"))["ColoredMNIST, Table 9"]
    assert counts[0] == "16" and counts[-2] == "8", "cells of ERM and DAT were run, those of UAT were not"
    assert counts[-1] == "2 of 20 draws; 2 of 3 trials; 21 of 5001 steps; 21 of 10001 steps"
    assert sum(map(int, counts[1:-2])) == 16


@pytest.mark.parametrize(
    ("mean", "error", "says"),
    [
        (71.0, 0.6, "agrees"),
        (69.0, 4.0, "open: -3.0 within ± 8"),
        (71.0, 0.1, "lower by 1.0"),
        (73.5, 0.3, "higher by 1.5"),
        (73.0, None, "+1.0, no error"),
    ],
)
def test_verdicts(mean: float, error: float | None, says: str) -> None:
    cell = replace(find_table("cmnist").published[0], mean=72.0, error=0.2)
    assert verdict(ComparedCell(cell, mean, error)).startswith(says)


def test_what_the_selected_models_follow(tmp_path: Path) -> None:
    """Of two draws the second is the oracle's; its audit is shown, with the trials in order."""
    everywhere = dict.fromkeys(COLOURS, 0.5)
    for trial in (1, 0):
        for draw in range(2):
            run = colours("DAT", "-90%", draw=draw, trial=trial)
            kept = write_done_run(tmp_path / "runs", run, 0.1 + 0.4 * trial, unseen_out=0.2 + 0.3 * draw)
            use = ColourUse(everywhere, everywhere, 0.9 - 0.4 * draw * trial, 0.5, 0.5, 0.8, 6000)
            said = {"label": "0-4", "share": 1.0 if draw and trial else 0.5}
            kept.save_audit({"shortcut": vars(use), "commonest": said, "sentence": ""})
    publish(tmp_path / "runs", tmp_path / "cmnist")
    assert (
        answer(tmp_path, "audit cmnist oracle ERM") == answer(tmp_path, "audit cmnist oracle unseen=+80%") == "not run"
    )
    lines = answer(tmp_path, "audit cmnist oracle DAT unseen=-90%").splitlines()
    assert lines[2:] == ["| DAT | -90% | 10.0, 50.0 | 10 to 10, 50 to 50 | colour, nothing | 90, 50 | 50, 50 |"]


def test_rows_of_a_grid_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for size in (8, 16, 128):
        run = colours("DAT", "-90%", variant=f"batch_size {size}", hparams={"batch_size": size})
        write_done_run(tmp_path / "runs", run, size / 200)
    publish(tmp_path / "runs", tmp_path / "batch")
    rows = answer(tmp_path, "table batch oracle").splitlines()[2:5]
    assert [row.split(" | ")[0] for row in rows] == [f"| DAT (batch_size {size})" for size in (8, 16, 128)]
    cells = rows_of(answer(tmp_path, "compare batch oracle 'DAT (batch_size 128)' columns=-90%"))
    assert cells["DAT (batch_size 128)"] == ["64.0"]


@pytest.mark.parametrize("runs_differ_in", ["trial", "draw"])
def test_penalties_at_the_end(tmp_path: Path, runs_differ_in: str) -> None:
    for algorithm, value in (("ERM", 4.0), ("DAT", 1.0)):
        for number in range(2):
            run = colours(algorithm, "-90%", track=("penalties",), **{runs_differ_in: number})
            kept = write_done_run(tmp_path / "runs", run, 0.5)
            for step, factor in ((0, 100.0), (20, 1.0)):
                pair = ((domain, factor * value * size) for domain, size in (("+90%", 0.5), ("+80%", 1.5 + number)))
                kept.append_penalties([PenaltyRecord(run.id, step, domain, one, one, one, one) for domain, one in pair])
    publish(tmp_path / "runs", tmp_path / "theory")
    rows = rows_of(answer(tmp_path, "penalties theory"))
    assert rows["ERM"] == ["5 ± 1"] * 4 and rows["DAT"] == ["1.2 ± 0.2, lower in 2 of 2"] * 4


def test_what_the_benchmark_measured(tmp_path: Path) -> None:
    def row(what: str, form: str, precision: str, ms: float) -> dict[str, object]:
        return {"what": what, "form": form, "precision": precision, "milliseconds": ms, "times_plain": 10 / ms}

    rows = [row("plain loop", "eager", "default", 10.0), row("plain evaluation", "eager", "default", 3000.0)]
    rows += [row("ERM", "eager", "bf16", 8.0), row("ERM", "captured", "bf16", 0.5), row("ERM", "captured", "fp32", 2.0)]
    report = {"dataset": "ColoredMNIST", "network": "mnist-cnn", "batch_size": 64, "rows": rows}
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "gpu.json").write_text(json.dumps(report))
    setup = "ColoredMNIST, mnist-cnn, 64 per domain"
    assert answer(tmp_path, "bench gpu.json").splitlines()[2:] == [
        f"| {setup} | ERM step | captured | 10 ms | 0.5 ms | 20 x |"
    ]


def test_settings_and_the_validation_they_are_chosen_by(tmp_path: Path) -> None:
    """Of the two evaluations the second is selected where its validation accuracy is above 0.6."""
    for eps, held_out, accuracy in ((1, 0.7, 0.8), (2, 0.9, 0.6)):
        for trial in (0, 1):
            run = colours("DAT", "-90%", variant=f"eps {eps}", hparams={"eps": eps}, trial=trial)
            write_done_run(tmp_path / "runs", run, accuracy, train_out=held_out + 0.02 * trial)
    publish(tmp_path / "runs", tmp_path / "settings")
    assert answer(tmp_path, "validation settings").splitlines() == [
        "| settings | runs | validation | unseen domain |",
        "|---|---|---|---|",
        "| DAT (eps 1) | 2 | 71.00 ± 1.00 | 80.00 ± 0.00 |",
        "| DAT (eps 2) | 2 | 91.00 ± 1.00 | 60.00 ± 0.00 |",
    ]
    assert "| DAT (eps 2) | 2 | 60.00 ± 0.00 | 60.00 ± 0.00 |" in answer(tmp_path, "validation settings until=19")


def test_repetitions_of_an_experiment_are_shown_apart(tmp_path: Path) -> None:
    """Six pairs each: with seed 0 all are ahead by ten points, with seed 1 one of them is behind."""
    for seed, precision, threads in ((0, "fp32", 1), (1, "bf16", 2)):
        for unseen in COLOURS:
            for trial in (0, 1):
                facts = {"trial": trial, "seed": seed, "precision": precision, "threads": threads}
                ahead = -0.3 if seed and trial and unseen == "-90%" else 0.1
                write_done_run(tmp_path / "runs", colours("ERM", unseen, **facts), 0.5)
                write_done_run(tmp_path / "runs", colours("DAT", unseen, **facts), 0.5 + ahead)
    publish(tmp_path / "runs", tmp_path / "repeated")
    lines = answer(tmp_path, "robustness repeated DAT training-domain").splitlines()
    assert lines[0].startswith("| seed | precision | threads | ERM | DAT | DAT − ERM | pairs ahead |")
    assert lines[2].startswith("| 0 | fp32 | 1 | 50.0 ± 0.0 | 60.0 ± 0.0 | +10.0 ± 0.0 | 6 of 6 | 0.031 |")
    assert lines[3].startswith("| 1 | bf16 | 2 |") and "| 5 of 6 | 0.22 |" in lines[3]
    assert lines[2].endswith("| yes |") and lines[3].endswith("| no |")


def test_places_are_filled_once(root: Path) -> None:
    page = "<!-- results: sentence cmnist DAT -->?<!-- /results -->\n"
    page += "<!-- results: table nothing oracle -->\n<!-- /results -->\n"
    once = filled(page, root)
    assert once.startswith("<!-- results: sentence cmnist DAT -->\n\nOn unseen domains DAT")
    assert once.endswith("-->\n\nnot run\n\n<!-- /results -->\n") and filled(once, root) == once


def test_an_audit_is_read_back(tmp_path: Path) -> None:
    run = colours("ERM", "-90%")
    write_done_run(tmp_path, run, 0.5).save_audit({"sentence": "x"})
    assert RunFolder(tmp_path, run).read_audit() == {"sentence": "x"}
    RunFolder(tmp_path, run).audit_file.write_text("{")
    with pytest.raises(UserError, match=r"audit\.json: cut short or no JSON: delete it"):
        RunFolder(tmp_path, run).read_audit()


def test_the_size_of_an_effect_in_words(root: Path) -> None:
    """DAT is ten points ahead on all six pairs, with one draw as with two."""
    one = "+10.0 ± 0.0 points (p = 0.031, clearly ahead)"
    said = answer(root, "effects DAT \"Colours = cmnist label='two draws' | cmnist draws=1 & cmnist | nothing\"")
    both = "+10.0 to +10.0 points in 2 experiments (p ≤ 0.031, clearly ahead)"
    assert said == f"- **Colours**: two draws {one}; {both}; not run."
    claim = answer(root, 'effects DAT "Claim = paper cmnist:bench"')
    ours = "61.0 ± 0.7 against 51.0 ± 0.7 with 2 of 20 draws; 2 of 3 trials; 21 of 10001 steps; 21 of 5001 steps"
    assert claim == f"- **Claim**: the paper has 68.4 ± 2.0 against 58.5 ± 0.3, we have {ours}."


def test_the_papers_headline_table_has_every_cell(root: Path) -> None:
    block = answer(root, "headline cmnist bench")
    rows = rows_of(block)
    assert len(rows) == 1 + 18 and all(len(row) == 4 for name, row in rows.items() if name != "headings")
    assert rows["ERM"][0] == "58.5 ± 0.3 / 51.0 ± 0.7, lower by 7.5" and rows["ARM"][0] == "63.2 ± 0.7 / not run"
    assert rows["DAT"][3] == "42.7 ± 0.7 / not run"
    assert block.splitlines()[-1].startswith("2 of 72 cells were run, with 2 of 20 draws; 2 of 3 trials")


def test_erm_beside_what_domainbed_publishes(tmp_path: Path) -> None:
    for unseen, accuracy in (("art_painting", 0.8), ("cartoon", 0.7), ("photo", 0.9), ("sketch", 0.6)):
        for trial in range(2):
            run = plan_run("PACS", "ERM", unseen, trial=trial, steps=21, evaluate_every=20)
            write_done_run(tmp_path / "runs", run, accuracy + 0.02 * trial)
    publish(tmp_path / "runs", tmp_path / "pacs")
    lines = answer(tmp_path, "domainbed pacs").splitlines()[2:]
    assert lines[0] == (
        "| training-domain | DomainBed, published | 84.7 ± 0.4 | 80.8 ± 0.6 | 97.2 ± 0.3 | 79.3 ± 1.0 |"
    )
    assert lines[1] == "| training-domain | ours | 81.0 ± 0.7 | 71.0 ± 0.7 | 91.0 ± 0.7 | 61.0 ± 0.7 |"
    assert lines[2] == "| training-domain | ours minus published | -3.7 | -9.8 | -6.2 | -18.3 |"
    assert len(lines) == 6 and "| 82.7 ± 1.1 |" in lines[3]


def test_the_control_of_pacs_one_ingredient_after_the_other(tmp_path: Path) -> None:
    """The first evaluation, before training, does not count."""
    assert answer(tmp_path, "control control.json") == "not run"
    machine = {"device": "a GPU", "torch": "2.13.0", "date": "2026-11-18"}
    means = {"control": 0.70, "stored": 0.66, "stored,adam": 0.67}
    accuracies = {
        name: {str(trial): [0.1, mean + 0.01 * trial - 0.02, mean + 0.01 * trial + 0.02] for trial in range(3)}
        for name, mean in means.items()
    }
    record = {"machine": machine, "unseen": "sketch", "steps": 601, "accuracies": accuracies}
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "control.json").write_text(json.dumps(record))
    assert answer(tmp_path, "control control.json").splitlines()[2:] == [
        "| control | 3 | 71.0 ± 0.6 |  |  |  |  |",
        "| stored | 3 | 67.0 ± 0.6 | -4.0 ± 0.0 | 0.25 | -4.0 ± 0.0 | 0.25 |",
        "| stored, adam | 3 | 68.0 ± 0.6 | -3.0 ± 0.0 | 0.25 | +1.0 ± 0.0 | 0.25 |",
        "",
        "Mean of the evaluations after the first; sketch unseen, 601 steps; a GPU, torch 2.13.0, 2026-11-18.",
    ]
