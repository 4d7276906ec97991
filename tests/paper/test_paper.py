"""The paper's search spaces, and the page of methods against the source."""

import pytest

from documents import ROOT
from domainwise.algorithms import ALGORITHMS
from domainwise.protocol.spaces import LogInteger, LogUniform, Uniform, draw
from domainwise.sweeps.spaces import BALLS, paper_space
from methods_page import Page, methods_page


@pytest.mark.parametrize(
    ("setting", "algorithm", "dataset", "eps", "alpha"),
    [
        ("multi", "DAT", "ColoredMNIST", (0.1, 100), (0.01, 10)),
        ("multi", "DAT", "NICO", (0.01, 0.1), (1e-4, 1e-3)),
        ("multi", "AT", "PACS", (0.01, 0.1), (1e-3, 1e-2)),
        ("multi", "UAT", "TerraIncognita", (1, 10**0.5), (0.01, 0.1)),
        ("multi", "EnsembleUAT", "NICO", (0.01, 0.1), (1e-4, 1e-3)),
        ("single", "DAT", "PACS", (0.01, 0.1), (1e-3, 1e-2)),
        ("multi", "DAT", "MixedSame", (10**-0.5, 1), (10**-1.5, 0.1)),
    ],
)
def test_ranges(
    setting: str, algorithm: str, dataset: str, eps: tuple[float, float], alpha: tuple[float, float]
) -> None:
    space = paper_space(algorithm, dataset, setting)
    for name, (low, high) in (("eps", eps), ("alpha", alpha)):
        assert space[name].at(0.0) == pytest.approx(low) and space[name].at(1.0) == pytest.approx(high)
        values = [draw(space, number, 0)[name] for number in range(20)]
        assert all(low <= value <= high for value in values), "the defaults (draw 0) lie in the range too"


def test_overrides_name_real_hyperparameters() -> None:
    datasets = {dataset for by_algorithm in BALLS.values() for ranges in by_algorithm.values() for dataset in ranges}
    for name, method in ALGORITHMS.items():
        for dataset in (*datasets, "VLCS"):
            assert set(paper_space(name, dataset)) <= set(method.space), (name, dataset)
    assert paper_space("ERM", "PACS") == {} and set(paper_space("ERM", "MixedSame")) == {"lr"}


def test_the_ranges_of_ada_and_wrm_are_the_papers() -> None:
    ada = {
        "ascent_lr": LogUniform(-1, 0.5, default=1.0),
        "gamma": Uniform(0.5, 1.5, default=1.0),
        "min_steps": LogInteger(0.5, 2.5, default=100, minimum=1),
        "phases": LogInteger(0.5, 2, default=6),
    }
    wrm = {"inner_lr": LogUniform(-2, -1, default=0.05), "gamma": LogUniform(-0.5, 0.5, default=1.0)}
    assert ada.items() <= ALGORITHMS["ADA"].space.items() and wrm.items() <= ALGORITHMS["WRM"].space.items()
    assert paper_space("ADA", "PACS") == paper_space("WRM", "PACS") == {}


def test_methods_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "methods.md").read_text() == methods_page(), "run: make docs"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_says_what_it_is(name: str) -> None:
    page = Page.of(ALGORITHMS[name])
    assert page.fields["Paper"] and page.fields["Try it"], "paper and advice"
    assert ":" in page.equation and ("_" in page.equation or "+" in page.equation), "an equation"


def test_searched_ranges_allow_their_own_defaults_and_draws() -> None:
    for name, method in ALGORITHMS.items():
        for key, parameter in method.space.items():
            for one in (parameter,) if not hasattr(parameter, "small") else (parameter.small, parameter.image):
                values = [one.default, *(one.at(u) for u in (0.0, 0.5, 0.999))]
                assert all(one.fault(value) is None for value in values), (name, key, values)
    assert isinstance(ALGORITHMS["DAT"].space["eps"], LogUniform)
