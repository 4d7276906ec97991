"""Hyper-parameter spaces: defaults, draws, and what a user may set."""

import math
import re
from typing import Any

import numpy as np
import pytest

from documents import ROOT
from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.protocol import spaces
from domainwise.protocol.spaces import Choice, Fixed, LogInteger, LogUniform, Parameter, Uniform, UniformInteger, Value
from methods_page import describe

SCALES: list[spaces.Scale] = ["small", "image"]
EVERY = sorted(ALGORITHMS)
COMMON = ["ERM", "IRM", "AT", "UAT", "DAT"]
TOY: dict[str, Parameter] = {
    "rate": LogUniform(-4, -1, default=1e-3),
    "width": LogInteger(3, 9, default=64, base=2, minimum=1),
    "delay": UniformInteger(10, 20, default=15),
    "share": Uniform(0.25, 0.75, default=0.5, maximum=1.0),
    "kind": Choice(("a", "b", "c"), default="b"),
    "fixed": Fixed(2.0),
    "maybe": Fixed(None),
    "count": Fixed(3, whole=True, minimum=1),
    "mode": Fixed("l2", options=("l2", "linf")),
}


def space_of(name: str, scale: spaces.Scale) -> dict[str, Parameter]:
    return spaces.at_scale(ALGORITHMS[name].space, scale)


def draws(parameter: str, n: int = 3000) -> list[Any]:
    return [spaces.draw({parameter: TOY[parameter]}, number, trial=0)[parameter] for number in range(1, n + 1)]


def farthest_from_uniform(values: np.ndarray) -> float:
    """Kolmogorov and Smirnov's distance, times sqrt(n): above 2 with probability 0.0007."""
    expected = np.arange(1, len(values) + 1) / len(values)
    return float(np.abs(np.sort(values) - expected).max()) * math.sqrt(len(values))


# defaults


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("trial", [0, 5])
def test_draw_zero_is_the_defaults(name: str, scale: spaces.Scale, trial: int) -> None:
    space = spaces.recorded(space_of(name, scale))
    assert spaces.draw(space_of(name, scale), 0, trial) == {key: parameter.default for key, parameter in space.items()}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("scale", SCALES)
def test_defaults_and_draws_are_legal(name: str, scale: spaces.Scale) -> None:
    space = space_of(name, scale)
    for number in range(200):
        values = spaces.draw(space, number, trial=1)
        assert spaces.override(space, values, values, name) == values


PROTOCOL: dict[spaces.Scale, dict[str, Any]] = {
    "small": {
        "lr": (1e-3, LogUniform, -4.5, -2.5),
        "weight_decay": (0.0, Fixed),
        "batch_size": (64, LogInteger, 3, 9),
        "dropout": (0.0, Fixed),
    },
    "image": {
        "lr": (5e-5, LogUniform, -5, -3.5),
        "weight_decay": (0.0, LogUniform, -6, -2),
        "batch_size": (32, LogInteger, 3, 5.5),
        "dropout": (0.0, Choice),
    },
}


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("scale", SCALES)
def test_common_parameters_are_as_on_the_protocol_page(name: str, scale: spaces.Scale) -> None:
    space = space_of(name, scale)
    for key, (default, kind, *limits) in PROTOCOL[scale].items():
        parameter = space[key]
        assert parameter.default == default and type(parameter) is kind, key
        assert [getattr(parameter, "low", None), getattr(parameter, "high", None)] == (limits or [None, None]), key
    assert space["batch_size"].base == 2
    if scale == "image":
        assert space["dropout"].options == (0.0, 0.1, 0.5)


@pytest.mark.parametrize("scale", SCALES)
def test_irm_is_as_on_the_protocol_page(scale: spaces.Scale) -> None:
    space = space_of("IRM", scale)
    penalty, anneal = space["penalty"], space["anneal"]
    assert isinstance(penalty, LogUniform) and (penalty.default, penalty.low, penalty.high) == (100.0, -1, 5)
    assert isinstance(anneal, LogInteger)
    assert (anneal.default, anneal.low, anneal.high, anneal.base) == (500, 0, 4, 10)


LATER: dict[str, dict[str, tuple[Any, ...]]] = {
    "SD": {"penalty": (0.1, LogUniform, -5, -1)},
    "IB_ERM": {"penalty": (100.0, LogUniform, -1, 5), "anneal": (500, LogInteger, 0, 4)},
    "IB_IRM": {
        "penalty": (100.0, LogUniform, -1, 5),
        "anneal": (500, LogInteger, 0, 4),
        "ib_penalty": (100.0, LogUniform, -1, 5),
        "ib_anneal": (500, LogInteger, 0, 4),
    },
    "Fishr": {
        "penalty": (1000.0, LogUniform, 1, 4),
        "anneal": (1500, UniformInteger, 0, 5000),
        "ema": (0.95, Uniform, 0.9, 0.99),
    },
    "Fish": {"meta_lr": (0.5, Choice, 0.05, 0.1, 0.5)},
    "ANDMask": {"tau": (1.0, Uniform, 0.5, 1.0)},
    "SANDMask": {"tau": (0.5, Uniform, 0.0, 1.0), "k": (10.0, LogUniform, -3, 5)},
    "IGA": {"penalty": (1000.0, LogUniform, 1, 5)},
    "CAD": {"lambda": (0.1, Choice, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0), "temperature": (0.1, Choice, 0.05, 0.1)},
    "CausIRL_CORAL": {"gamma": (1.0, LogUniform, -1, 1)},
    "Transfer": {
        "lambda": (1.0, LogUniform, -2, 1),
        "delta": (2.0, Uniform, 0.1, 3.0),
        "d_steps": (10, Choice, 1, 2, 5),
        "lr_d": (1e-3, LogUniform, -4.5, -2.5),
    },
    "EQRM": {
        "quantile": (0.75, Uniform, 0.5, 0.99),
        "anneal": (2500, LogInteger, 2.5, 3.5),
        "anneal_lr": (1e-6, LogUniform, -7, -5),
    },
    "RDM": {
        "penalty": (5.0, Uniform, 0.1, 10.0),
        "variance": (0.004, Uniform, 0.001, 0.007),
        "anneal": (1500, UniformInteger, 800, 2700),
        "anneal_lr": (1.5e-5, Uniform, 8e-6, 2e-5),
        "batch_size": (88, UniformInteger, 70, 100),
    },
    "TRM": {
        "cos_lambda": (1e-4, LogUniform, -5, 0),
        "anneal": (200, LogInteger, 0, 4),
        "eta": (0.01, LogUniform, -3, -1),
    },
    "URM": {
        "lambda": (0.1, Uniform, 0.0, 0.2),
        "activation": ("tanh", Choice, "tanh", "relu"),
        "hidden_layers": (1, Choice, 1, 2, 3),
        "lr_d": (5e-5, LogUniform, -6, -4.5),
    },
    "ADRMX": {
        "lr": (3e-5, Choice, 2e-5, 3e-5, 4e-5, 5e-5),
        "weight_decay": (0.0, Fixed),
        "lambda": (0.75, Fixed),
        "d_steps": (2, Fixed),
        "beta1": (0.5, Fixed),
        "mlp_width": (256, Fixed),
        "mlp_depth": (9, Choice, 8, 9, 10),
        "mlp_dropout": (0.0, Fixed),
    },
}
"""Defaults and ranges of DomainBed's later methods on photographs; SANDMask's tau alone has another default."""


@pytest.mark.parametrize(
    ("topic", "name", "scale", "values"),
    [
        ("RDM, by dataset", "RDM", "image", ("penalty", "anneal", "variance", "batch_size")),
        ("batch on DomainNet", "ERM", "image", ("batch_size",)),
        ("ERM++ on small images", "ERMPlusPlus", "small", ("head_steps", "head_lr")),
    ],
)
def test_the_list_of_differences_from_domainbed_states_our_values(
    topic: str, name: str, scale: spaces.Scale, values: tuple[str, ...]
) -> None:
    lines = (ROOT / "docs" / "protocol.md").read_text().splitlines()
    (ours,) = [line.split(" | ")[2] for line in lines if line.startswith(f"| {topic} |")]
    space = space_of(name, scale)
    for value in values:
        assert f"`{value}` {describe(space[value])}" in ours
    assert set(re.findall("`([a-z_]+)`", ours)) == set(values)


@pytest.mark.parametrize("name", sorted(LATER))
def test_later_methods_have_domainbeds_defaults_and_ranges(name: str) -> None:
    shared, space = space_of("ERM", "image"), space_of(name, "image")
    own = {key for key, parameter in space.items() if parameter != shared.get(key)} - {"batch_size"}
    assert own == set(LATER[name]) - {"batch_size"}
    for key, (default, kind, *rest) in LATER[name].items():
        parameter = space[key]
        options = parameter.options if isinstance(parameter, Choice) else ()
        limits = [parameter.low, parameter.high] if isinstance(parameter, (Uniform, LogInteger)) else list(options)
        assert (parameter.default, type(parameter), limits) == (default, kind, rest), key


def test_later_methods_have_ranges_of_their_own_on_small_images() -> None:
    urm, adrmx, rdm = (space_of(name, "small") for name in ("URM", "ADRMX", "RDM"))
    assert urm["lr_d"] == LogUniform(-5.5, -3.5, default=1e-3)
    assert adrmx["lr"] == Choice((5e-4, 1e-3, 2e-3, 3e-3), default=3e-3)
    assert rdm["batch_size"] == space_of("IRM", "small")["batch_size"]


@pytest.mark.parametrize("name", ["AT", "UAT", "DAT"])
def test_balls_are_as_on_the_protocol_page(name: str) -> None:
    space = space_of(name, "small")
    assert isinstance(space["eps"], LogUniform) and isinstance(space["alpha"], LogUniform)
    assert (space["eps"].default, space["eps"].low, space["eps"].high) == (1.0, -1, 1)
    assert (space["alpha"].default, space["alpha"].low, space["alpha"].high) == (0.1, -2, 0)
    assert space["norm"].default == "l2" and space["loss_cap"].default is None


# draws


def test_another_parameter_shifts_no_draw() -> None:
    small = {name: TOY[name] for name in ("width", "share")}
    for number in range(20):
        values = spaces.draw(TOY, number, trial=2)
        assert spaces.draw(small, number, trial=2) == {name: values[name] for name in small}


@pytest.mark.parametrize("other", [(2, 1), (1, 2)], ids=["draw", "trial"])
@pytest.mark.parametrize("name", ["rate", "share"])
def test_draws_differ_between_draws_and_trials(name: str, other: tuple[int, int]) -> None:
    assert spaces.draw(TOY, 1, 1)[name] != spaces.draw(TOY, *other)[name]


def test_parameters_of_one_draw_are_independent() -> None:
    twins: dict[str, Parameter] = {name: Uniform(0, 1, default=0.5) for name in ("one", "two")}
    pairs = np.array([list(spaces.draw(twins, number, 0).values()) for number in range(1, 2001)])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.1


def test_draws_are_the_same_for_ever() -> None:
    """Recorded: a change of these numbers changes every search."""
    assert spaces.draw(TOY, 1, 0)["share"] == pytest.approx(0.42156690416737175, abs=1e-15)


def test_log_uniform_draws() -> None:
    values = np.array(draws("rate"))
    assert values.min() >= 1e-4 and values.max() < 1e-1
    assert farthest_from_uniform((np.log10(values) + 4) / 3) < 2


def test_uniform_draws() -> None:
    values = np.array(draws("share"))
    assert values.min() >= 0.25 and values.max() < 0.75
    assert farthest_from_uniform((values - 0.25) / 0.5) < 2


def test_log_integer_draws_are_floored_ints() -> None:
    values = draws("width")
    assert all(type(value) is int for value in values)
    assert min(values) == 8 and 500 < max(values) < 512
    for octave in range(3, 9):
        share = np.mean([2**octave <= value < 2 ** (octave + 1) for value in values])
        assert share == pytest.approx(1 / 6, abs=0.03)


@pytest.mark.parametrize(("u", "value"), [(0.0, 8), (0.999999, 511), (0.5, 64)])
def test_log_integers_are_rounded_down(u: float, value: int) -> None:
    assert TOY["width"].at(u) == value


def test_uniform_integers_are_floored_ints() -> None:
    values = draws("delay")
    assert all(type(value) is int for value in values) and set(values) == set(range(10, 20))
    assert all(values.count(number) / len(values) == pytest.approx(0.1, abs=0.02) for number in range(10, 20))


def test_choices_are_equally_likely() -> None:
    values = draws("kind")
    for option in "abc":
        assert values.count(option) / len(values) == pytest.approx(1 / 3, abs=0.03)


def test_fixed_settings_stay() -> None:
    assert {spaces.draw(TOY, number, 0)["fixed"] for number in range(50)} == {2.0}


# the user's own values


def overridden(name: str, value: Value) -> Value:
    return spaces.override(TOY, spaces.draw(TOY, 0, 0), {name: value}, "Toy")[name]


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("rate", -0.1, "at least 0"),
        ("rate", "fast", "a number"),
        ("rate", None, "a number"),
        ("rate", True, "a number"),
        ("rate", math.nan, "finite"),
        ("rate", math.inf, "finite"),
        ("rate", -math.inf, "finite"),
        pytest.param("rate", 10**400, "rate", id="rate-huge"),
        ("share", 1.5, "at most 1"),
        ("width", 0, "at least 1"),
        ("width", 8.0, "a whole number"),
        ("width", "8", "a whole number"),
        ("delay", 12.5, "a whole number"),
        ("delay", -1, "at least 0"),
        ("width", False, "a whole number"),
        ("width", math.nan, "a whole number"),
        ("kind", "d", "one of a, b, c"),
        ("kind", 1, "one of a, b, c"),
        ("fixed", "two", "a number"),
        ("fixed", -1.0, "at least 0"),
        ("fixed", math.inf, "finite"),
        ("maybe", "no", "a number"),
        ("maybe", False, "a number"),
        ("count", 2.5, "a whole number"),
        ("count", 0, "at least 1"),
        ("mode", "l1", "one of l2, linf"),
        ("mode", None, "one of l2, linf"),
    ],
)
def test_illegal_values(name: str, value: Value, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as caught:
        overridden(name, value)
    message = str(caught.value)
    assert "Toy" in message and name in message and "\n" not in message


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [
        ("DAT", "eps", -1.0),
        ("DAT", "alpha", -1.0),
        ("DAT", "loss_cap", -1.0),
        ("ERM", "lr", -1e-3),
        ("ERM", "weight_decay", -1.0),
        ("ERM", "batch_size", 0),
        ("ERM", "dropout", -0.1),
        ("ERM", "dropout", 1.5),
        ("IRM", "batch_size", 1),
        ("IRM", "penalty", -1.0),
        ("IRM", "anneal", -1),
    ],
)
@pytest.mark.parametrize("scale", SCALES)
def test_values_no_algorithm_can_work_with(algorithm: str, name: str, value: Value, scale: spaces.Scale) -> None:
    space = space_of(algorithm, scale)
    with pytest.raises(UserError, match=f"{algorithm}.*{name}"):
        spaces.override(space, spaces.draw(space, 0, 0), {name: value}, algorithm)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["lr", "weight_decay", "batch_size", "dropout"])
@pytest.mark.parametrize("value", [True, False])
def test_truth_is_no_number(scale: spaces.Scale, name: str, value: bool) -> None:
    space = space_of("ERM", scale)
    with pytest.raises(UserError, match=name):
        spaces.override(space, spaces.draw(space, 0, 0), {name: value}, "ERM")


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [("rate", 1, 1.0), ("rate", 0.5, 0.5), ("share", 0, 0.0), ("fixed", 3, 3.0), ("maybe", 2, 2.0)],
)
def test_integers_are_numbers_and_become_floats(name: str, value: Value, kept: float) -> None:
    """So that eps=2 and eps=2.0 are the same run."""
    result = overridden(name, value)
    assert result == kept and type(result) is float


@pytest.mark.parametrize(
    ("name", "value"), [("width", 7), ("kind", "c"), ("mode", "linf"), ("maybe", None), ("count", 9)]
)
def test_other_legal_values_are_kept(name: str, value: Value) -> None:
    result = overridden(name, value)
    assert result == value and type(result) is type(value)


def test_override_leaves_the_rest_and_its_arguments_alone() -> None:
    values = spaces.draw(TOY, 3, 1)
    before = dict(values)
    result = spaces.override(TOY, values, {"width": 5}, "Toy")
    assert values == before and result == before | {"width": 5}


@pytest.mark.parametrize(
    ("given", "hint"), [("widht", "'width'"), ("Rate", "'rate'"), ("zzzz", "known: count, delay, fixed")]
)
def test_unknown_names_suggest_the_nearest(given: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint) as caught:
        overridden(given, 1)
    assert "Toy" in str(caught.value) and given in str(caught.value)
