"""Learning rates over time, and what of a recipe is refused before training."""

import math
from dataclasses import replace
from typing import Any

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.data.catalogue import Dataset
from domainwise.protocol.recipe import rate_factor
from domainwise.sweeps.collection import experiment
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.plan_run import erm_to_the_end, plan_run
from small_datasets import table


def test_cosine_falls_from_one_to_nearly_zero() -> None:
    factors = [rate_factor("cosine", step, 100) for step in range(100)]
    assert factors[0] == 1.0 and factors[50] == pytest.approx(0.5) and 0 < factors[99] < 3e-4
    assert factors == [pytest.approx(0.5 + 0.5 * math.cos(step * math.pi / 100)) for step in range(100)]


def test_warm_up_rises_in_a_twentieth_of_the_steps_then_the_cosine_falls() -> None:
    factors = [rate_factor("warmup-cosine", step, 100) for step in range(100)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[5:] == pytest.approx([0.5 + 0.5 * math.cos(i * math.pi / 95) for i in range(95)])


@pytest.mark.parametrize("schedule", ["constant", "cosine", "warmup-cosine"])
@pytest.mark.parametrize("steps", [1, 2, 19, 20, 21])
def test_factors_of_short_runs_are_in_range(schedule: str, steps: int) -> None:
    factors = [rate_factor(schedule, step, steps) for step in range(steps)]
    assert max(factors) == 1.0 and min(factors) > 0


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"start": "prob"}, "unknown start 'prob': did you mean 'probe'?", ""),
    ({"freeze": "all"}, "unknown part to freeze 'all': known: features, none", ""),
    ({"lr_schedule": "cosin"}, "unknown learning rate schedule 'cosin': did you mean 'cosine'?", ""),
    ({"early_stop": -1}, "early_stop must be at least 0, not -1", "early_stop"),
    ({"early_stop": 3, "held_out": 0.0}, "early_stop needs held-out samples", "early_stop"),
    ({"early_stop": 3, "average": "swad"}, "swad averages up to an end that it finds itself", "early_stop"),
    ({"clip_gradient": -1.0}, "clip_gradient must be a finite number of at least 0, not -1.0", "clip_gradient"),
    ({"clip_gradient": math.nan}, "clip_gradient must be a finite number", "clip_gradient"),
    ({"clip_gradient": math.inf}, "clip_gradient must be a finite number", "clip_gradient"),
]
"""Options, the error, and the option that it names."""


@pytest.mark.parametrize(("options", "message", "argument"), BAD)
def test_a_recipe_that_cannot_be_is_refused(options: dict[str, Any], message: str, argument: str) -> None:
    with pytest.raises(UserError) as error:
        plan_run("BackgroundDigits", "ERM", [0], **options)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert error.value.argument == argument


OF_FEATURES = [name for name, method in ALGORITHMS.items() if method.moves_features]


@pytest.mark.parametrize("algorithm", OF_FEATURES)
def test_methods_of_the_features_are_refused_where_none_train(algorithm: str) -> None:
    with pytest.raises(UserError, match=f"{algorithm} adds happens in the features, which are frozen") as error:
        plan_run("BackgroundDigits", algorithm, [0], freeze="features")
    assert error.value.argument == "freeze"
    with pytest.raises(UserError, match="linear") as error:
        plan_run("BackgroundDigits", algorithm, [0], network="linear")
    assert error.value.argument == "network"


def test_what_a_method_cannot_read_is_said_before_training() -> None:
    vectors = Dataset.from_environments(table())
    with pytest.raises(UserError, match="ARM needs images, to which it adds a channel, but"):
        plan_run(vectors, "ARM", [0])
    with pytest.raises(UserError, match="ARM adds an input channel to the network, which mlp does not take"):
        plan_run("BackgroundDigits", "ARM", [0], network="mlp")
    assert plan_run(vectors, "SagNet", [0]).network == "mlp", "whose features train"


@pytest.mark.parametrize("algorithm", ["MTL", "ARM"])
def test_methods_that_replace_layers_have_no_probe_start(algorithm: str) -> None:
    with pytest.raises(UserError, match=f"{algorithm} replaces layers of the network"):
        plan_run("BackgroundDigits", algorithm, [0], start="probe")


def test_a_head_that_would_train_alone_to_the_end_is_refused() -> None:
    with pytest.raises(UserError, match="classifier alone for 100 steps, and there are 100 in all: set more steps"):
        plan_run("BackgroundDigits", "ERMPlusPlus", [0], steps=100)
    assert plan_run("BackgroundDigits", "ERMPlusPlus", [0], steps=101).hparams["head_steps"] == 100
    assert plan_run("BackgroundDigits", "ERMPlusPlus", [0], steps=100, hparams={"head_steps": 9}).steps == 100
    both = plan_sweep(
        "BackgroundDigits", ["ERM", "ERMPlusPlus"], steps=100, draws=2, trials=1, hparams={"head_steps": 9}
    )
    assert {run.hparams.get("head_steps") for run in both.runs()} == {None, 9}


@pytest.mark.parametrize(("algorithm", "name"), [("EQRM", "anneal"), ("Fishr", "anneal"), ("ADA", "min_steps")])
def test_a_method_that_no_run_reaches_is_named(algorithm: str, name: str) -> None:
    runs = [plan_run("BackgroundDigits", algorithm, [0], steps=steps, hparams={name: 50}) for steps in (40, 50)]
    (note,) = erm_to_the_end([*runs, plan_run("BackgroundDigits", "IRM", [0], steps=5)])
    assert note == f"{algorithm} is ERM before step 50, and there are 50 steps: set more steps, or a smaller {name}"
    assert not list(erm_to_the_end([*runs, plan_run("BackgroundDigits", algorithm, [0], steps=51, hparams={name: 50})]))


def test_erm_plus_plus_averages_unless_another_average_is_named() -> None:
    named = [plan_run("BackgroundDigits", "ERMPlusPlus", [0], average=name).average for name in ("", "none", "ema")]
    assert named == ["sma", "sma", "ema"] and not plan_run("BackgroundDigits", "ERM", [0]).average


def test_runs_and_plans_without_a_recipe_are_those_of_before() -> None:
    assert plan_run("BackgroundDigits", "DAT", [0]).id == "e9874187cb0fcb30"
    assert plan_run("BackgroundDigits", "IRM", [0], threads=2).id == "a24e5c5f3df915c3"
    assert plan_sweep("PACS", ("ERM", "DAT")).id == "4f9b1e0c3701"
    assert plan_sweep("PACS", ("ERM", "DAT"), lr_schedule="cosine").id != "4f9b1e0c3701"


def test_runs_of_different_recipes_go_into_different_tables() -> None:
    plain = plan_run("BackgroundDigits", "ERM", [0])
    assert plain.recipe == {} and experiment(plain).recipe == ""
    other = replace(plain, lr_schedule="cosine", clip_gradient=1.0)
    assert experiment(other).recipe == "lr_schedule cosine, clip_gradient 1.0"
