"""Choosing by domains left out: the search's runs, the choice from hand-made records, and which method to choose."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import domainwise as dw
from commands import commands
from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.data.find import find_dataset
from domainwise.data.sources.saved import load_environments, save_environments, saved_dataset, with_fingerprint
from domainwise.engine.session import Session
from domainwise.models.compare import compare, comparison
from domainwise.models.search import check_metric, finished_curves, ranked_candidates
from domainwise.models.tune import choose
from domainwise.models.unseen import describe_estimate, unseen_estimate
from domainwise.protocol.metrics import METRICS
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.protocol.selection import Method
from domainwise.sweeps.collection import collect
from domainwise.sweeps.commands import sweep_command
from domainwise.sweeps.plan import Plan, plan_sweep, saved_plans
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.tables import tables
from small_datasets import make_folder, table

Accuracy = Callable[[Run, int], float]


@pytest.fixture(autouse=True)
def hospitals(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Three domains of vectors, a, b and c, under a name."""
    data = replace(Dataset.from_environments(table()), name="Hospitals")
    monkeypatch.setitem(DATASETS._things, "Hospitals", data)
    return data


def search(algorithms: tuple[str, ...] = ("ERM", "DAT"), **options: Any) -> Plan:
    facts = {"draws": 2, "trials": 2, "steps": 11, "evaluate_every": 5, "search": "candidates", **options}
    return plan_sweep("Hospitals", algorithms, **facts)


def record(plan: Plan, out: Path, unseen: Accuracy, seen: Accuracy = lambda *_: 0.5, gain: float = 0.0) -> None:
    """The records the runs of a search would leave: accuracy on the domain left out, and on those trained on.

    By averaging they gain this, give or take.
    """
    for run in plan.runs():
        folder = RunFolder(out, run)
        folder.create()
        for step in (0, 5, 10):
            parts = [(run.test_domains[0], split, unseen(run, step)) for split in ("in", "out")]
            parts += [(domain, "out", seen(run, step)) for domain in run.train_domains]
            rows = [Record(run.id, step, *part, 1.0, 0.0) for part in parts]
            folder.append([*rows, *(averaged(row, gain) for row in rows if run.average)])
        folder.append([Status(run.id, 10, "done", "")])


def averaged(row: Record, gain: float) -> Record:
    """The same for averaged weights."""
    return replace(row, accuracy=row.accuracy + gain + np.sin(1000 * row.accuracy) / 100, average="sma")


# the runs


def test_every_candidate_leaves_every_domain_out_and_trials_share_values() -> None:
    plan = search()
    assert len(plan.runs()) == len(set(plan.runs())) == 2 * 2 * 2 * 3
    for run in plan.runs():
        (left_out,) = run.test_domains
        assert set(run.train_domains) == {"a", "b", "c"} - {left_out}
    values = {(run.algorithm, run.draw): json.dumps(run.hparams) for run in plan.runs()}
    assert all(values[run.algorithm, run.draw] == json.dumps(run.hparams) for run in plan.runs())
    assert values["DAT", 0] != values["DAT", 1]
    assert [run.trial for run in plan.runs()] == sorted(run.trial for run in plan.runs())


def test_test_domains_are_kept_out_of_everything() -> None:
    plan = search(test_domains=("b",))
    assert {run.test_domains for run in plan.runs()} == {("a",), ("c",)}
    assert all("b" not in (*run.train_domains, *run.test_domains) for run in plan.runs())


def test_fixed_hyper_parameters_apply_where_they_exist() -> None:
    plan = search(hparams={"eps": 0.3, "lr": 0.5})
    assert all(run.hparams["lr"] == 0.5 for run in plan.runs())
    assert all(run.hparams["eps"] == 0.3 for run in plan.runs() if run.algorithm == "DAT")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithms": ()}, "name at least one algorithm"),
        ({"algorithms": ("ERM", "ERM")}, "named twice"),
        ({"algorithms": ("EMR",)}, "unknown algorithm 'EMR'"),
        ({"draws": 0}, "candidates must be at least 1"),
        ({"trials": -1}, "trials must be at least 1"),
        ({"test_domains": ("a", "b")}, "needs at least 2 domains"),
        ({"test_domains": ("moon",)}, "unknown domain"),
        ({"hparams": {"epz": 1}}, "unknown hyper-parameter of ERM, DAT 'epz'"),
        ({"algorithms": ("CORAL",), "test_domains": ("a",)}, "CORAL needs at least 2 training domains"),
    ],
)
def test_mistakes(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        search(**options).runs()  # type: ignore[arg-type]


# the choice


def test_the_best_mean_over_domains_and_trials_is_chosen_with_its_number_of_steps(tmp_path: Path) -> None:
    plan = search()

    def unseen(run: Run, step: int) -> float:
        if (run.algorithm, run.draw) == ("DAT", 1):
            return {0: 0.2, 5: 0.9, 10: 0.2}[step] - 0.1 * (run.test_domains[0] == "b") - 0.02 * run.trial
        return 0.95 if run.test_domains[0] == "a" else 0.6  # better on one domain, worse on average

    record(plan, tmp_path, unseen)
    tuning = choose(plan, tmp_path)
    assert (tuning.algorithm, tuning.best.number, tuning.steps) == ("DAT", 1, 6)
    assert tuning.best.accuracy == pytest.approx(0.9 - 0.1 / 3 - 0.01)
    assert tuning.best.domains == pytest.approx({"a": 0.89, "b": 0.79, "c": 0.89})
    assert tuning.hparams == next(r.hparams for r in plan.runs() if (r.algorithm, r.draw) == ("DAT", 1))
    assert len(tuning.tried) == 4


def test_ties_go_to_fewer_steps_the_defaults_and_the_first_named(tmp_path: Path) -> None:
    plan = search(("DAT", "ERM"))
    record(plan, tmp_path, lambda *_: 0.5)
    best = choose(plan, tmp_path).best
    assert (best.algorithm, best.number, best.steps) == ("DAT", 0, 1)


def test_a_candidate_that_diverged_once_is_out(tmp_path: Path) -> None:
    plan = search()
    record(plan, tmp_path, lambda run, _: 0.9 if run.draw == 1 else 0.5)
    for run in plan.runs():
        if run.draw == 1 and run.trial == 1 and run.test_domains == ("c",):
            folder = RunFolder(tmp_path, run)
            folder.rewind(5)
            folder.append([Status(run.id, 10, "diverged", "the loss was not finite")])
    found = ranked_candidates(plan, finished_curves(plan.runs(), tmp_path))
    assert [(one.algorithm, one.number) for one in found] == [("ERM", 0), ("DAT", 0)]


def test_nothing_finished(tmp_path: Path) -> None:
    plan = search(draws=1)
    with pytest.raises(UserError, match="they have not ended"):
        choose(plan, tmp_path)
    for run in plan.runs():
        RunFolder(tmp_path, run).create()
        RunFolder(tmp_path, run).append([Status(run.id, 0, "failed", "no room")])
    with pytest.raises(UserError, match=r"finished all its runs \(failed: no room\)"):
        choose(plan, tmp_path)


def test_the_whole_domain_counts_both_splits_by_their_size(tmp_path: Path) -> None:
    plan = search(("ERM",), draws=1, trials=1)
    for run in plan.runs():
        folder = RunFolder(tmp_path, run)
        folder.create()
        folder.append(
            [Record(run.id, 0, run.test_domains[0], split, v, 1.0, 0.0) for split, v in (("in", 1), ("out", 0))]
        )
        folder.append([Status(run.id, 10, "done", "")])
    assert choose(plan, tmp_path).best.accuracy == pytest.approx(0.8)


# the comparison


def noisy(gain: float, seed: int = 0) -> Accuracy:
    """DAT is better by `gain`, give or take; draws and steps do not matter."""

    def unseen(run: Run, step: int) -> float:
        draw = np.random.default_rng([seed, ord(run.test_domains[0]), run.trial, run.algorithm == "DAT"])
        return 0.6 + gain * (run.algorithm == "DAT") + 0.02 * draw.normal()

    return unseen


def test_a_real_gap_is_shipped_and_noise_is_not(tmp_path: Path) -> None:
    plan = search(trials=3)
    record(plan, tmp_path / "real", noisy(0.1))
    real = comparison(plan, tmp_path / "real")
    assert real.winner == "DAT" and real.gaps["DAT"].clear and real.baseline == "ERM"
    assert real.sentence.startswith("Ship DAT: on the domains left out, DAT is clearly ahead of ERM: +")
    assert real.table.sentence("DAT") in real.sentence, "as in every table"
    assert "over 9 pairs (p = " in real.sentence and real.chosen().algorithm == "DAT"
    record(plan, tmp_path / "noise", noisy(0.0))
    noise = comparison(plan, tmp_path / "noise")
    assert noise.winner == "ERM" and not noise.gaps["DAT"].clear
    assert noise.sentence.startswith(
        "Ship ERM: on the domains left out, no other is clearly ahead of it; DAT is not clearly different from ERM: "
    )


def test_another_metric_selects_compares_and_is_shown(tmp_path: Path) -> None:
    """ERM is right as often as DAT, and much more often sure where it is wrong; late steps are worse."""
    plan = search(trials=4)
    for run in plan.runs():
        folder = RunFolder(tmp_path, run)
        folder.create()
        luck = np.random.default_rng(int(run.id[:8], 16))
        for step in (0, 5, 10):
            loss = (1.5 if run.algorithm == "ERM" else 0.7) + step / 100 + run.draw / 10 + luck.normal() / 50
            parts = [
                (run.test_domains[0], "in"),
                (run.test_domains[0], "out"),
                *((d, "out") for d in run.train_domains),
            ]
            folder.append([Record(run.id, step, *part, 0.5 + step / 100, loss, 0.0) for part in parts])
        folder.append([Status(run.id, 10, "done", "")])
    plain, found = comparison(plan, tmp_path), comparison(plan, tmp_path, metric=METRICS["nll"])
    assert plain.winner == "ERM" and plain.chosen().steps == 11
    assert found.winner == "DAT" and found.chosen().steps == 1 and found.chosen().number == 0
    assert found.gaps["DAT"].gain > 0.5 > 0 > found.gaps["DAT"].mean and "negative log-likelihood" in found.table.title
    with pytest.raises(UserError, match="worst-group is not known"):
        comparison(plan, tmp_path, metric=METRICS["worst-group"])

    told = unseen_estimate(finished_curves(plan.runs(), tmp_path), Method("DAT"), METRICS["nll"])
    assert told is not None and told["worst"]["mean"] == max(told["domains"].values()), "lower is better"
    assert told["mean"] == pytest.approx(0.7, abs=0.05), "candidate 0 at step 0: the lowest loss"
    words = describe_estimate(told)
    assert words.startswith(f"negative log-likelihood on unseen domains {told['mean']:.3f} ± ") and "%" not in words
    assert words.endswith("; selected by training-domain validation of negative log-likelihood")


@pytest.mark.parametrize(
    ("size", "message"), [(0, "has no groups"), (6, r"/b, split out of trial 0: its largest group has 6 samples")]
)
def test_a_metric_that_groups_are_too_small_for_is_refused_before_training(
    size: int, message: str, tmp_path: Path
) -> None:
    data = table()
    grouped = replace(data, groups=torch.arange(len(data.labels)) // size) if size else data
    with pytest.raises(UserError, match=message) as refused:
        compare(grouped, "ERM", metric="worst-group", steps=2, device="cpu", out=tmp_path)
    assert "in every evaluated split one of at least 10 samples" in str(refused.value)
    assert not list(tmp_path.glob("*/run.json"))


def test_groups_that_are_large_enough_are_not_refused(tmp_path: Path) -> None:
    data = table()
    named = with_fingerprint(replace(data, groups=torch.arange(len(data.labels)) // 10))
    saved = saved_dataset(save_environments(named, tmp_path / "data"))
    check_metric(plan_sweep(saved.name, ("ERM",), search="candidates"), METRICS["worst-group"], None)


def test_averaged_weights_are_rows_and_may_be_what_to_ship(tmp_path: Path) -> None:
    plan = search(trials=3, average="sma")
    record(plan, tmp_path / "both", noisy(0.0), gain=0.1)
    both = comparison(plan, tmp_path / "both")
    assert [str(row.method) for row in both.table.rows] == ["ERM", "ERM + SMA", "DAT", "DAT + SMA"]
    assert both.winner == "ERM + SMA" and both.gaps["ERM + SMA"].comparisons == 3 and both.gaps["ERM + SMA"].n == 9
    chosen = both.chosen()
    assert (chosen.algorithm, chosen.average, both.as_json()["average"]) == ("ERM", "sma", "sma")
    record(plan, tmp_path / "noise", noisy(0.0))
    assert comparison(plan, tmp_path / "noise").winner == "ERM"
    record(plan, tmp_path / "dat", noisy(0.2), gain=0.1)
    dat = comparison(plan, tmp_path / "dat")
    assert dat.winner == "DAT + SMA" and dat.sentence.startswith(
        "Ship DAT + SMA: on the domains left out, DAT + SMA is c"
    )


def test_where_averaging_the_baseline_is_enough_it_is_shipped(tmp_path: Path) -> None:
    """DAT + SMA is best by a little, which may be noise: the simpler one is clearly ahead of ERM, too."""
    plan = search(trials=3, average="sma")
    record(plan, tmp_path, noisy(0.008), gain=0.1)
    found = comparison(plan, tmp_path)
    assert found.gaps["DAT + SMA"].mean > found.gaps["ERM + SMA"].mean and found.gaps["DAT + SMA"].clear
    assert found.winner == "ERM + SMA" and not found.over_average["DAT + SMA"].clear
    assert found.over_average["DAT + SMA"].comparisons == 5
    assert "; DAT + SMA is not clearly different from ERM + SMA: +" in found.sentence


def test_the_p_value_is_that_of_a_paired_t_test(tmp_path: Path) -> None:
    plan = search(trials=3)
    unseen = noisy(0.02)
    record(plan, tmp_path, unseen)
    firsts = [run for run in plan.runs() if run.draw == 0]
    pairs = {
        name: [
            unseen(run, 0) for run in sorted(firsts, key=lambda r: (r.test_domains, r.trial)) if run.algorithm == name
        ]
        for name in ("ERM", "DAT")
    }
    expected = stats.ttest_rel(pairs["DAT"], pairs["ERM"]).pvalue
    assert comparison(plan, tmp_path).gaps["DAT"].p == pytest.approx(expected)


@pytest.mark.parametrize(("trials", "p"), [(1, 1 / 4), (2, 1 / 32), (3, 1 / 256)])
def test_gaps_that_are_all_equal_are_no_surer_than_pairs_that_agree(tmp_path: Path, trials: int, p: float) -> None:
    """One image of twenty more, on each of three domains."""
    plan = search(draws=1, trials=trials)
    record(plan, tmp_path, lambda run, _: 0.75 + 0.05 * (run.algorithm == "DAT"))
    found = comparison(plan, tmp_path)
    assert found.gaps["DAT"].p == pytest.approx(p) and found.winner == ("ERM" if trials == 1 else "DAT")


def test_selection_does_not_look_at_the_domain_left_out(tmp_path: Path) -> None:
    """Draw 1 does better where it is left out, draw 0 on held-out samples of what it was trained on: draw 0 counts."""
    plan = search(("ERM",), trials=1)
    record(plan, tmp_path, lambda run, _: 0.5 + 0.4 * run.draw, lambda run, _: 0.9 - 0.4 * run.draw)
    result = comparison(plan, tmp_path)
    assert result.table.rows[0].average is not None and result.table.rows[0].average.mean == pytest.approx(50)
    assert result.sentence == "Only ERM was tried: nothing to compare it with."
    assert result.chosen().number == 1, "but for the model of all domains, the domains left out decide"


def test_the_baseline_is_the_first_where_erm_is_not_tried(tmp_path: Path) -> None:
    plan = search(("UAT", "DAT"))
    record(plan, tmp_path, noisy(0.1))
    assert comparison(plan, tmp_path).baseline == "UAT"


def test_a_model_of_all_domains_beside_a_search_does_not_disturb_its_tables(tmp_path: Path) -> None:
    plan = search()
    record(plan, tmp_path, noisy(0.1))
    before = tables(collect(tmp_path), "training-domain")
    run = plan_run("Hospitals", "DAT", (), steps=11, evaluate_every=5)
    folder = RunFolder(tmp_path, run)
    folder.create()
    folder.append([Record(run.id, 0, domain, "out", 1.0, 1.0, 0.0) for domain in run.train_domains])
    folder.append([Status(run.id, 10, "done", "")])
    assert len(collect(tmp_path).curves) == len(plan.runs()) + 1
    assert tables(collect(tmp_path), "training-domain") == before


# data that workers can load


def test_saved_data_is_the_same_data(tmp_path: Path) -> None:
    for data in (table(), find_dataset("BackgroundDigits").load()):
        folder = save_environments(data, tmp_path / data.name)
        found = load_environments(folder)
        for name in ("images", "labels", "mean", "std"):
            mine, theirs = getattr(data, name), getattr(found, name)
            assert torch.equal(mine, theirs) and mine.dtype == theirs.dtype
        assert (found.sizes, found.classes, found.name) == (data.sizes, data.classes, data.name)
        described = find_dataset(str(folder))
        assert described.name.startswith(f"{folder}#") and find_dataset(described.name).domains == data.domains


def test_changed_or_damaged_data_is_refused(tmp_path: Path) -> None:
    folder = save_environments(table(), tmp_path / "data")
    name = saved_dataset(folder).name
    save_environments(table(seed=1), folder)
    with pytest.raises(UserError, match="has changed since this run was planned"):
        find_dataset(name)
    (folder / "labels.npy").write_bytes(b"")
    with pytest.raises(UserError, match="holds no whole data"):
        find_dataset(str(folder))


def test_a_training_does_not_depend_on_where_its_data_lies(tmp_path: Path) -> None:
    named = with_fingerprint(table())
    states = []
    for parent in ("here", "there"):
        data = saved_dataset(save_environments(named, tmp_path / parent / named.name))
        run = plan_run(data, "DAT", ["c"], hparams={"batch_size": 8}, steps=2)
        session = Session(run, data.load(), torch.device("cpu"))
        session.step()
        states.append(session.algorithm.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


# for real


def test_tune_in_parallel_continues_and_refits(tmp_path: Path, quick_workers: None) -> None:
    options: dict[str, Any] = {"candidates": 2, "device": "cpu", "workers": 2}
    options |= {"steps": 6, "evaluate_every": 5, "hparams": {"batch_size": 8}}
    first = dw.tune(table(), "DAT", out=tmp_path, test_domains=["b"], **options)
    assert {candidate.number for candidate in first.tried} == {0, 1} and first.model is None
    assert set(first.best.domains) == {"a", "c"}
    earlier: list[bool] = []
    again = dw.tune(
        table(),
        "DAT",
        out=tmp_path,
        test_domains=["b"],
        refit=True,
        progress=lambda e: earlier.append(e.earlier),
        **options,
    )
    assert earlier == [True] * 4, "nothing is trained twice"
    assert again.tried == first.tried and again.model is not None
    assert again.model.domains == ("a", "c")
    assert again.model.card.hparams == first.hparams and again.model.card.training["run"]["steps"] == first.steps
    saved = dw.load_model(tmp_path)
    assert saved.card.training["unseen"]["pairs"] == 2 and set(saved.card.training["unseen"]["domains"]) == {"a", "c"}
    assert "over 2 pairs of domain left out and trial" in saved.unseen
    chosen = f"weights of the last step, {first.steps - 1}; domains left out have chosen the number of steps"
    assert saved.weights == again.model.weights == chosen


def test_compare_says_which_to_ship_and_its_folder_what_was_searched(
    tmp_path: Path, quick_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"steps": 2, "hparams": {"batch_size": 8}, "device": "cpu", "workers": 2}
    result = compare(table(), ["ERM", "DAT"], candidates=2, trials=1, out=tmp_path, **options)
    assert result.winner in ("ERM", "DAT") and {one.number for one in result.tuning.tried} == {0, 1}
    assert {str(one.method) for one in result.tuning.tried} == {"ERM", "ERM + SMA", "DAT", "DAT + SMA"}
    assert result.as_json()["candidate"] == result.chosen().number
    assert "2 steps, 2 candidates x 1 trial" in result.table.caption and "draw" not in result.table.caption
    assert {"draws", "trials"} <= set(result.as_json()["table"]["rows"][0])
    (plan,) = saved_plans(tmp_path)
    assert (plan.search, plan.draws, plan.algorithms) == ("candidates", 2, ("ERM", "DAT"))
    status = commands(capsys)("status", tmp_path)
    assert "12 runs: 12 done, 0 running, 0 failed, 0 remaining\n" in status.out and not status.err
    command = str(sweep_command(plan, tmp_path))
    assert (
        "--average sma" in command
        and command.startswith("domainwise compare --dataset ")
        and command.endswith(f" --runs {tmp_path}")
    )
    assert sweep_command(replace(plan, test_domains=("b",)), tmp_path) is None, "only tune keeps domains out"


def test_the_former_name_of_candidates_still_works(tmp_path: Path, quick_workers: None) -> None:
    with pytest.warns(DeprecationWarning, match="candidates"):
        tuning = dw.tune(table(), "ERM", draws=1, steps=2, hparams={"batch_size": 8}, device="cpu", out=tmp_path)
    with pytest.warns(DeprecationWarning, match="number"):
        assert [one.draw for one in tuning.tried] == [0]


def test_the_command(
    tmp_path: Path, quick_workers: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    make_folder(Path("photos"))
    common = "compare --data photos --network small-cnn --image-size 16 --algorithms ERM,DAT --hparams 1 --trials 1"
    command = [*common.split(), *["--steps", "2", "--hparam", "batch_size=4", "--device", "cpu", "--workers", "2"]]
    result = commands(capsys)(*command, "--out", "model", "--json")
    told = json.loads(result.out)
    assert result.status == 0 and told["winner"] in ("ERM", "DAT") and told["model"] == "model"
    model = dw.load_model("model")
    assert model.card.algorithm == told["winner"] and model.domains == ("clinic", "lab", "street")
    assert model.card.hparams == told["hparams"] and told["average"] == ""
    assert [row["method"] for row in told["table"]["rows"]] == ["ERM", "ERM + SMA", "DAT", "DAT + SMA"]
    shown = commands(capsys)(*command)
    assert shown.status == 0 and told["sentence"] in shown.out
    assert "selected by training-domain validation" in " ".join(shown.out.split()), "a caption may be broken into lines"
    estimate = commands(capsys)(*command, "--dry-run")
    assert "6 runs: ERM, DAT, each of 3 domains left out, 1 candidate each, 1 trial" in estimate.err
    assert "6 runs, 0 still to do" in estimate.out
    estimate = commands(capsys)(*command, "--dry-run", "--json")
    assert json.loads(estimate.out) == {"runs": 6, "missing": 0, "seconds": 0, "workers": 2, "lacking": []}
    wrong = commands(capsys)("compare", "--data", "photos", "--dataset", "BackgroundDigits")
    assert wrong.is_one_line_error and "not both" in wrong.err
