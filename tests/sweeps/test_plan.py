"""Plans: which runs follow from the arguments of a search."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.core.seeds import uniform
from domainwise.data.catalogue import DATASETS, Dataset
from domainwise.protocol import spaces
from domainwise.protocol.options import TrainingKeywords, TrainingOptions
from domainwise.protocol.runs import Run
from domainwise.sweeps import plan as plan_module
from domainwise.sweeps.plan import Plan, missing_runs, plan_sweep, planned_runs, saved_plans
from domainwise.sweeps.plan_run import plan_run, search_space
from handmade_records import COLOURS

SCENES = ("scene1", "scene2", "scene3", "scene4")


def scenes(*algorithms: str, **arguments: Any) -> Plan:
    return plan_sweep("BackgroundDigits", algorithms or ("ERM",), **{"draws": 1, "trials": 1, **arguments})


def divisions(runs: Iterable[Run]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(run.train_domains, run.test_domains) for run in runs]


def toy(name: str, *, domains: tuple[str, ...] = ("a", "b", "c"), **facts: Any) -> Dataset:
    """A dataset that is never loaded."""
    fields: dict[str, Any] = {"classes": ("0", "1"), "shape": (3, 8, 8), "scale": "image", "network": "mlp"}
    return Dataset(name, "A toy.", domains, steps=5001, loader=lambda _: pytest.fail("loaded"), **{**fields, **facts})


@pytest.fixture
def fixed_roles(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A dataset that says itself what is trained on, validated on and tested on."""
    domains = ("train1", "train2", "validation", "test1", "test2")
    data = toy("Roles", domains=domains, validation=("validation",), unseen=("test1", "test2"), held_out=0.0)
    monkeypatch.setitem(DATASETS._things, "Roles", data)
    return data


# domains


def test_multi_leaves_every_domain_out_in_turn() -> None:
    runs = scenes("ERM", "DAT", draws=3, trials=2).runs()
    assert len(runs) == 4 * 2 * 3 * 2
    for algorithm in ("ERM", "DAT"):
        own = [run for run in runs if (run.algorithm, run.draw, run.trial) == (algorithm, 1, 1)]
        assert divisions(own) == [(tuple(s for s in SCENES if s != out), (out,)) for out in SCENES]
    order = [(run.draw, run.trial) for run in runs]
    assert order == sorted(order), "an interrupted plan has compared everything on the draws it finished"
    assert [run.algorithm for run in runs[:4]] == ["ERM", "DAT", "ERM", "DAT"]
    assert {run.variant for run in runs} == {""}


@pytest.mark.parametrize(
    ("setting", "chosen", "expected"),
    [
        ("multi", ("scene3",), [(("scene1", "scene2", "scene4"), ("scene3",))]),
        ("multi", ("2", "0"), [(("scene1", "scene2", "scene4"), ("scene3",)), (SCENES[1:], ("scene1",))]),
        ("single", (), [((source,), tuple(s for s in SCENES if s != source)) for source in SCENES]),
        ("single", ("scene1",), [((source,), ("scene1",)) for source in SCENES[1:]]),
        ("single", ("scene2", "0"), [(("scene1",), ("scene2",)), (("scene2",), ("scene1",))]
            + [((source,), ("scene2", "scene1")) for source in SCENES[2:]]),
    ],
)  # fmt: skip
def test_single_trains_on_every_domain_in_turn_and_test_domains_may_be_chosen(
    setting: str, chosen: tuple[str, ...], expected: list[tuple[tuple[str, ...], tuple[str, ...]]]
) -> None:
    runs = scenes(setting=setting, test_domains=chosen).runs()
    assert divisions(runs) == expected and {run.setting for run in runs} == {setting}


@pytest.mark.parametrize(("dataset", "domains"), [("BackgroundDigits", SCENES), ("ColoredMNIST", COLOURS)])
def test_pairs_add_every_two_domains_once(dataset: str, domains: tuple[str, ...]) -> None:
    runs = plan_sweep(dataset, ("ERM",), draws=1, trials=1, pairs=True).runs()
    assert [run.test_domains for run in runs] == [(d,) for d in domains] + list(combinations(domains, 2))
    for run in runs:
        assert set(run.train_domains) == set(domains) - set(run.test_domains)


def test_pairs_of_three_domains_are_planned_for_methods_that_need_one() -> None:
    plan = plan_sweep("ColoredMNIST", ("ERM", "MLDG"), draws=1, trials=2, pairs=True)
    counts = Counter((run.algorithm, len(run.test_domains)) for run in plan.runs())
    assert counts == {("ERM", 1): 6, ("ERM", 2): 6, ("MLDG", 1): 6} and plan.without_pairs == ("MLDG",)
    assert plan_sweep("ColoredMNIST", ("MLDG",), draws=1, trials=1).without_pairs == ()
    assert scenes("ERM", "MLDG", pairs=True).without_pairs == ()


def test_pairs_of_chosen_domains_are_those_that_judge_them() -> None:
    runs = scenes(test_domains=("scene2",), pairs=True).runs()
    assert {run.test_domains for run in runs[1:]} == {("scene1", "scene2"), ("scene2", "scene3"), ("scene2", "scene4")}
    assert runs[0].test_domains == ("scene2",)


def test_a_dataset_with_roles_is_divided_so(fixed_roles: Dataset) -> None:
    runs = plan_sweep("Roles", ("ERM",), draws=1, trials=1, pairs=True).runs()
    assert divisions(runs) == [(("train1", "train2"), ("test1", "test2"))]
    single = plan_sweep("Roles", ("ERM",), draws=1, trials=1, setting="single").runs()
    assert divisions(single) == [(("train1",), ("test1", "test2")), (("train2",), ("test1", "test2"))]
    for run in (*runs, *single):
        assert run.validation_domains == ("validation",) and run.held_out == 0.0


def test_a_validation_domain_that_is_trained_on_does_not_validate(fixed_roles: Dataset) -> None:
    run = plan_run(fixed_roles, "ERM", ["test1"], train_domains=["train1", "validation"])
    assert run.train_domains == ("train1", "validation") and run.validation_domains == ()


@pytest.mark.parametrize("setting", ["multi", "single"])
def test_chosen_test_domains_of_a_dataset_with_roles(fixed_roles: Dataset, setting: str) -> None:
    runs = plan_sweep("Roles", ("ERM",), draws=1, trials=1, setting=setting, test_domains=("test2",)).runs()
    assert {run.test_domains for run in runs} == {("test2",)}


@pytest.mark.parametrize("domain", ["train1", "validation", "2"])
def test_a_domain_with_another_role_is_not_tested_on(fixed_roles: Dataset, domain: str) -> None:
    with pytest.raises(UserError, match="unknown test domain of Roles"):
        plan_sweep("Roles", ("ERM",), test_domains=(domain,))


# hyper-parameters


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_draw_zero_is_the_defaults_and_every_draw_has_the_algorithms_own_names(algorithm: str) -> None:
    space = spaces.recorded(search_space(algorithm, "small"))
    plan = scenes(algorithm, draws=4, trials=2)
    for run in plan.runs():
        assert list(run.hparams) == list(space)
        assert run.hparams == spaces.draw(space, run.draw, run.trial)
        if run.draw == 0:
            assert run.hparams == {name: parameter.default for name, parameter in space.items()}
    assert all(set(run.hparams) == set(space) for run in replace(plan, space="paper").runs())


def test_a_draw_is_the_same_for_every_division_and_another_in_every_trial() -> None:
    found: dict[tuple[int, int], set[str]] = {}
    for run in scenes("DAT", draws=3, trials=3, pairs=True).runs():
        found.setdefault((run.draw, run.trial), set()).add(json.dumps(run.hparams))
    assert {len(values) for values in found.values()} == {1}
    assert len({json.dumps(sorted(values)) for (draw, _), values in found.items() if draw}) == 2 * 3
    assert len({json.dumps(sorted(values)) for (draw, _), values in found.items() if draw == 0}) == 1


@pytest.mark.parametrize(
    ("dataset", "setting", "algorithm", "ranges"),
    [
        ("ColoredMNIST", "multi", "DAT", {"eps": (-1, 2), "alpha": (-2, 1)}),
        ("ColoredMNIST", "multi", "AT", {"eps": (-1, 1), "alpha": (-2, 0)}),
        ("NICO", "multi", "AT", {"eps": (-1, 0), "alpha": (-2, -1)}),
        ("NICO", "single", "DAT", {"eps": (-2, -1), "alpha": (-4, -3)}),
        ("PACS", "multi", "DAT", {"eps": (-1, 2), "alpha": (-2, 1)}),
        ("PACS", "single", "DAT", {"eps": (-2, -1), "alpha": (-3, -2)}),
        ("TerraIncognita", "multi", "DAT", {"eps": (-0.5, 0.7), "alpha": (-2, -1)}),
        ("TerraIncognita", "multi", "UAT", {"eps": (0, 0.5), "alpha": (-2, -1)}),
        ("TerraIncognita", "multi", "EnsembleUAT", {"eps": (0, 0.5), "alpha": (-2, -1)}),
        ("MixedSame", "single", "DAT", {"eps": (-0.5, 0), "alpha": (-1.5, -1), "lr": (-5.5, -4.5)}),
        ("MixedSame", "single", "ERM", {"lr": (-5.5, -4.5)}),
        ("PACS", "multi", "WRM", {"inner_lr": (-2, -1), "gamma": (-0.5, 0.5)}),
        ("PACS", "multi", "ERM", {"lr": (-5, -3.5), "weight_decay": (-6, -2)}),
    ],
)
def test_the_papers_space_per_dataset_and_setting(
    dataset: str, setting: str, algorithm: str, ranges: dict[str, tuple[float, float]]
) -> None:
    for run in plan_sweep(dataset, (algorithm,), draws=5, trials=2, setting=setting, space="paper").runs():
        assert run.variant == "paper"
        for name, (low, high) in ranges.items():
            value = run.hparams[name]
            assert isinstance(value, float)
            if run.draw:
                u = uniform("hparam", run.draw, run.trial, name)
                assert value == pytest.approx(10 ** (low + u * (high - low)))
            elif name != "weight_decay":
                assert 10**low * (1 - 1e-9) <= value <= 10**high * (1 + 1e-9), "the default lies in the range"


def test_fixed_values_go_to_the_algorithms_that_have_them() -> None:
    for run in scenes("ERM", "DAT", draws=3, hparams={"eps": 2, "norm": "linf", "batch_size": 4}).runs():
        assert run.hparams["batch_size"] == 4
        assert (run.hparams.get("eps"), run.hparams.get("norm")) == (
            (2.0, "linf") if run.algorithm == "DAT" else (None, None)
        )
        if run.draw:
            assert run.hparams["lr"] == pytest.approx(10 ** (-4.5 + 2 * uniform("hparam", run.draw, 0, "lr")))


def test_ranges_replace_the_searched_ones_and_a_variant_names_them() -> None:
    plan = scenes("ERM", "DAT", draws=3, space="paper", ranges={"eps": (-2, -1)}, variant="small balls")
    for run in plan.runs():
        assert run.variant == "small balls"
        if run.algorithm == "DAT":
            u = uniform("hparam", run.draw, 0, "eps") if run.draw else 0.5
            assert run.hparams["eps"] == pytest.approx(10 ** (-2 + u))
        else:
            assert "eps" not in run.hparams


def test_the_trials_of_a_draw_differ_in_their_values_and_those_of_a_candidate_do_not() -> None:
    draws, candidates = (scenes("DAT", draws=3, trials=2, search=search).runs() for search in ("draws", "candidates"))

    def values(runs: list[Run]) -> dict[tuple[int, int], set[str]]:
        return {
            (draw, trial): {json.dumps(run.hparams) for run in runs if (run.draw, run.trial) == (draw, trial)}
            for draw in range(3)
            for trial in range(2)
        }

    assert values(draws)[1, 0] != values(draws)[1, 1] and values(candidates)[1, 0] == values(candidates)[1, 1]
    assert {cell: run for cell, run in values(draws).items() if cell[1] == 0} == {
        cell: run for cell, run in values(candidates).items() if cell[1] == 0
    }, "the first trials are the same runs"
    assert [run.trial for run in candidates] == sorted(run.trial for run in candidates), "each once before any twice"


def test_options_are_passed_whole_and_may_be_changed_one_by_one() -> None:
    options = TrainingOptions(steps=7, hparams={"batch_size": 4}, network="mlp")
    run = plan_run("BackgroundDigits", "DAT", "scene1", options, seed=3)
    assert run == plan_run("BackgroundDigits", "DAT", 0, steps=7, hparams={"batch_size": 4}, network="mlp", seed=3)
    assert scenes("DAT", options=options, seed=3, test_domains=("scene1",)).runs() == [run]
    assert set(TrainingKeywords.__annotations__) == {field.name for field in fields(TrainingOptions)}
    with pytest.raises(TypeError, match="unexpected keyword argument 'stepz'"):
        plan_run("BackgroundDigits", "ERM", 0, stepz=7)  # type: ignore[call-arg]


# identity


def test_ids_are_unique() -> None:
    plans = [
        scenes("ERM", "DAT", draws=3, trials=2, pairs=True),
        scenes("ERM", "DAT", draws=3, trials=2, setting="single"),
        scenes("ERM", "DAT", draws=3, trials=2, space="paper"),
        scenes("ERM", draws=3, trials=2, seed=1),
    ]
    runs = [run for plan in plans for run in plan.runs()]
    assert len({run.id for run in runs}) == len(runs) == len(planned_runs(plans))


def test_what_two_plans_share_is_done_once() -> None:
    small, large = scenes("ERM"), scenes("ERM", "DAT", draws=2)
    assert len(planned_runs([small, large])) == len(large.runs())
    assert planned_runs([small, large])[: len(small.runs())] == small.runs(), "the first plan's come first"
    assert planned_runs([]) == []


def test_plans_of_one_dataset_advance_together_and_datasets_one_after_the_other() -> None:
    erm, dat = scenes("ERM", draws=2, trials=2), scenes("DAT", draws=3, trials=2)
    other = plan_sweep("ColoredMNIST", ("ERM",), draws=1, trials=2)
    runs = planned_runs([erm, other, dat])
    assert [run.dataset for run in runs] == ["BackgroundDigits"] * (len(runs) - 6) + ["ColoredMNIST"] * 6
    own = runs[:-6]
    assert [run.draw for run in own] == [0] * 16 + [1] * 16 + [2] * 8
    assert {run.algorithm for run in own[:16]} == {"ERM", "DAT"}, "neither waits for all draws of the other"


# the folder


PLANS = [
    scenes("ERM", "DAT"),
    scenes("DAT", hparams={"eps": 2, "norm": "linf", "loss_cap": None}, ranges={"alpha": (-4.0, -3.5)}, variant="v"),
    scenes("DAT", setting="single", space="paper", test_domains=("scene1",), steps=7, network="mlp", seed=3),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.id)
def test_a_plan_survives_its_folder(tmp_path: Path, plan: Plan) -> None:
    plan.save(tmp_path / "new")
    plan.save(tmp_path / "new")
    (kept,) = saved_plans(tmp_path / "new")
    assert kept == plan and kept.id == plan.id and kept.runs() == plan.runs()


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.id)
def test_the_runs_of_a_saved_plan_that_are_missing_are_found_without_expanding_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    plan.save(tmp_path)
    first, *others = plan.runs()
    fresh = Plan.from_description(json.loads(json.dumps(plan.describe())))
    monkeypatch.setattr(plan_module, "plan_run", lambda *_, **__: pytest.fail("expanded"))
    assert missing_runs(fresh, tmp_path / "plans", {run.id for run in plan.runs()}) == []
    assert missing_runs(fresh, tmp_path / "plans", {first.id}) == others
    (listed,) = (tmp_path / "plans").glob("*.runs.json.gz")
    listed.write_bytes(gzip.compress(json.dumps({"plan": plan.id, "runs": [{"draw": 1}]}).encode()))
    assert missing_runs(fresh, tmp_path / "plans", set()) == [], "a list that is damaged says nothing"


@pytest.mark.parametrize(
    "damage", [None, b"", b"nonsense", gzip.compress(b"{}", mtime=0), gzip.compress(b'{"runs": [1]}', mtime=0)]
)
def test_a_plan_is_read_with_the_list_of_its_runs_and_expanded_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    plan = PLANS[1]
    plan.save(tmp_path)
    runs = plan.runs()
    (listed,) = (tmp_path / "plans").glob("*.runs.json.gz")
    with monkeypatch.context() as patch:
        patch.setattr(plan_module, "plan_run", lambda *_, **__: pytest.fail("expanded"))
        (saved,) = saved_plans(tmp_path)
        assert saved.runs() == runs
        saved.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "plans" / listed.name).read_bytes() == listed.read_bytes()
    if damage is None:
        listed.unlink()
    else:
        listed.write_bytes(damage)
    (saved,) = saved_plans(tmp_path)
    assert saved.runs() == runs


def test_the_list_of_another_plan_is_not_taken(tmp_path: Path) -> None:
    for plan in PLANS[:2]:
        plan.save(tmp_path)
    plans = tmp_path / "plans"
    (plans / f"{PLANS[0].id}.runs.json.gz").write_bytes((plans / f"{PLANS[1].id}.runs.json.gz").read_bytes())
    assert {plan.id: plan.runs() for plan in saved_plans(tmp_path)} == {plan.id: plan.runs() for plan in PLANS[:2]}


def test_a_plan_of_draws_is_described_as_before_there_were_candidates() -> None:
    keys = (
        "dataset algorithms draws trials setting space test_domains pairs steps evaluate_every network seed precision"
    )
    keys += " hparams ranges variant weights full_curves image_size augmentation track"
    plan = scenes("ERM", "DAT", draws=2)
    assert set(plan.describe()) == set(keys.split()) and plan.id == "2a46feb34e46"
    candidates = replace(plan, search="candidates")
    assert candidates.describe() == plan.describe() | {"search": "candidates"} and candidates.id != plan.id
    assert Plan.from_description(json.loads(json.dumps(candidates.describe()))) == candidates


def test_all_plans_of_a_folder_are_found_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for plan in PLANS:
        plan.save(tmp_path)
    (tmp_path / "plans" / "notes.txt").write_text("mine")
    (tmp_path / "plans" / ".half.json.123.tmp").write_text("{")
    assert {plan.id for plan in saved_plans(tmp_path)} == {plan.id for plan in PLANS}
    assert list(saved_plans(tmp_path / "elsewhere")) == []


LATER = json.dumps(scenes().describe() | {"something_new": 1})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"algorithms": ["ERM"]}', "\xff", LATER])
def test_a_foreign_plan_is_named(tmp_path: Path, text: str) -> None:
    PLANS[0].save(tmp_path)
    path = tmp_path / "plans" / "foreign.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"foreign\.json.*: delete it, or run"):
        list(saved_plans(tmp_path))


def test_equal_plans_have_equal_ids() -> None:
    whole, real = scenes("DAT", ranges={"eps": (-2, -1)}), scenes("DAT", ranges={"eps": (-2.0, -1.0)})
    assert whole == real and whole.id == real.id


# mistakes


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"algorithms": ("ERN",)}, "unknown algorithm 'ERN': did you mean 'ERM'"),
        ({"algorithms": ()}, "name at least one algorithm"),
        ({"dataset": "ColouredMNIST"}, "unknown dataset 'ColouredMNIST': did you mean 'ColoredMNIST'"),
        ({"setting": "singel"}, "unknown setting 'singel': did you mean 'single'"),
        ({"search": "candidate"}, "unknown search 'candidate': did you mean 'candidates'"),
        ({"space": "papers"}, "unknown space 'papers': did you mean 'paper'"),
        ({"test_domains": ("scene9",)}, "unknown domain of BackgroundDigits 'scene9'"),
        ({"test_domains": ("4",)}, "unknown domain of BackgroundDigits '4'"),
        ({"draws": 0}, "draws must be at least 1, not 0"),
        ({"trials": -1}, "trials must be at least 1, not -1"),
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"network": "smal-cnn"}, "unknown network 'smal-cnn': did you mean 'small-cnn'"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"hparams": {"batch_size": 0}}, "batch_size=0 must be at least 1"),
        ({"hparams": {"bacth_size": 8}}, "unknown hyper-parameter .*'bacth_size'.*'batch_size'"),
        ({"algorithms": ("VREx",), "setting": "single"}, "VREx needs at least 2 training domains; 1 left"),
    ],
)
def test_impossible_plans(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        plan_sweep(**{"dataset": "BackgroundDigits", "algorithms": ("ERM", "DAT"), **wrong}).runs()


def test_the_soup_space_draws_mild_values_from_one_start() -> None:
    runs = {"PACS": plan_sweep("PACS", ["ERM", "ARM"], draws=40, trials=1, test_domains=["photo"], space="soup").runs()}
    runs["small"] = scenes("ERM", draws=40, space="soup", test_domains=["scene1"]).runs()
    rates = {"PACS": {1e-5, 3e-5, 5e-5}, "small": {2e-4, 6e-4, 1e-3}}
    for name, found in runs.items():
        assert {run.hparams["lr"] for run in found} == rates[name]
        assert {run.hparams["dropout"] for run in found} == {0.0, 0.1, 0.5}
        assert {run.hparams["weight_decay"] for run in found} == {0.0, 1e-4, 1e-6}, "draw 0 is the defaults"
        assert len({(run.algorithm, run.hparams["batch_size"]) for run in found}) == len(
            {run.algorithm for run in found}
        )
        assert {(run.variant, run.shared_start) for run in found} == {("mild", True)}
    starts = {run.algorithm: run.start for run in runs["PACS"]}
    assert starts == {"ERM": "probe", "ARM": ""} and {run.start for run in runs["small"]} == {""}
    plain = scenes("ERM", draws=2, test_domains=["scene1"]).runs()
    assert not {run.id for run in plain} & {run.id for run in runs["small"]}
    assert "shared_start" not in plain[0].describe() and "shared_start" not in Plan("PACS", ("ERM",)).describe()


def test_the_space_of_2024_has_domainbeds_newer_defaults() -> None:
    runs = plan_sweep(
        "VLCS", ("ERM", "MLDG"), draws=30, trials=1, space="domainbed-2024", weights="augmix.pth#0123456789abcdef"
    ).runs()
    assert {(run.network, run.variant) for run in runs} == {("resnet50-augmix-live", "2024")}
    mldg = [run for run in runs if run.algorithm == "MLDG"]
    assert mldg[0].hparams["meta_test"] == 2 and {run.hparams["meta_test"] for run in mldg} == {1, 2}
    erm = plan_sweep("VLCS", ("ERM",), draws=30, trials=1).runs()
    assert [run.hparams for run in runs if run.algorithm == "ERM"] == [run.hparams for run in erm], (
        "all else is the same"
    )
    own = plan_sweep("VLCS", ("ERM",), draws=1, trials=1, space="domainbed-2024", network="resnet18").runs()
    assert {run.network for run in own} == {"resnet18"}
    small = plan_sweep("ColoredMNIST", ("MLDG",), draws=1, trials=1, space="domainbed-2024").runs()
    assert {run.network for run in small} == {"mnist-cnn"}


def test_the_split_of_2024_leaves_a_domain_to_train_on() -> None:
    """On two training domains MLDG tests on one; which pairs are left out too does not change the others' values."""
    options = {"draws": 20, "trials": 1, "space": "domainbed-2024", "network": "mlp"}
    tested = {run.hparams["meta_test"] for run in plan_sweep("ColoredMNIST", ("MLDG",), **options).runs()}
    assert tested == {1}
    alone = plan_sweep("RotatedMNIST", ("MLDG",), **options).runs()
    with_pairs = plan_sweep("RotatedMNIST", ("MLDG",), pairs=True, **options).runs()
    assert {run.hparams["meta_test"] for run in alone} == {1, 2} and {run.id for run in alone} <= {
        run.id for run in with_pairs
    }
    with pytest.raises(UserError, match="meta_test=2 of 2 training domains leave none to train on: set fewer"):
        plan_sweep("ColoredMNIST", ("MLDG",), hparams={"meta_test": 2}).runs()


def test_a_network_without_convolutions_is_refused_where_one_is_widened() -> None:
    with pytest.raises(UserError, match="ARM adds an input channel to the network, which mlp does not take"):
        plan_run("ColoredMNIST", "ARM", "+90%", network="mlp")
    assert plan_run("ColoredMNIST", "ARM", "+90%", network="small-cnn").network == "small-cnn"


def test_a_setting_that_was_added_later_is_no_part_of_earlier_runs() -> None:
    """At its default the values, and so the identity, are those of earlier versions."""
    plain, named = (plan_run("PACS", "MLDG", "photo", hparams=given) for given in ({}, {"meta_test": 0}))
    assert plain.id == named.id and "meta_test" not in plain.hparams
    assert plan_run("PACS", "MLDG", "photo", hparams={"meta_test": 1}).hparams["meta_test"] == 1
    with pytest.raises(UserError, match=r"meta_test=1.5 must be a whole number"):
        plan_run("PACS", "MLDG", "photo", hparams={"meta_test": 1.5})
