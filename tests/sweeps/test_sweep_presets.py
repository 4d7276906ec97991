"""Studies by name: what of them can be trained here, in which order, and for how long."""

from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from domainwise.algorithms import ALGORITHMS
from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS
from domainwise.protocol.limits import seconds_of
from domainwise.protocol.options import DEFAULTS
from domainwise.protocol.runs import Run
from domainwise.sweeps import launch
from domainwise.sweeps.estimate import StepTimes
from domainwise.sweeps.events import Event
from domainwise.sweeps.plan_run import plan_run
from domainwise.sweeps.presets import PRESETS, draw_by_draw, plan_preset
from handmade_records import a_run
from small_datasets import PACS, PACS_CLASSES, make_folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(PRESETS, "domainbed", ("PACS", "BackgroundDigits", "ColoredMNIST-embedded"))
    return "domainbed"


def test_the_presets_name_datasets() -> None:
    for names in PRESETS.values():
        assert len(names) == len(set(names)) and set(names) <= set(DATASETS)


def test_all_algorithms_on_the_data_that_is_here(small: str, tmp_path: Path) -> None:
    study = plan_preset(small, DEFAULTS, data_root=tmp_path, draws=1, trials=1)
    assert [plan.dataset for plan in study.plans] == ["BackgroundDigits", "ColoredMNIST-embedded"]
    assert all(plan.algorithms == tuple(ALGORITHMS) for plan in study.plans)
    assert len(study.left_out) == 1 and study.left_out[0].startswith("PACS: PACS not found: looked in")
    assert len(draw_by_draw(study.plans)) == (4 + 3) * len(ALGORITHMS)


def test_data_without_weights_is_left_out_unless_none_are_needed(small: str, tmp_path: Path) -> None:
    make_folder(tmp_path / "PACS", PACS, PACS_CLASSES, count=2)
    study = plan_preset(small, DEFAULTS, ("ERM",), data_root=tmp_path, draws=1, trials=1)
    assert "weights get resnet50" in study.left_out[0] and len(study.plans) == 2
    options = DEFAULTS.changed(network="small-cnn", image_size=32)
    study = plan_preset(small, options, ("ERM",), data_root=tmp_path, draws=1, trials=1)
    assert [(plan.dataset, plan.options.image_size) for plan in study.plans] == [
        ("PACS", 32),
        ("BackgroundDigits", None),
        ("ColoredMNIST-embedded", None),
    ]


def test_algorithms_that_cannot_be_trained_so_are_left_out(small: str, tmp_path: Path) -> None:
    """By the network, the steps or the number of domains; mistakes that others share are errors."""
    names = ("ERM", "ARM", "ERMPlusPlus", "MLDG")
    short = DEFAULTS.changed(network="mlp", steps=50, hparams={"meta_test": 2})
    study = plan_preset(small, short, names, data_root=tmp_path, draws=1, trials=1)
    assert {plan.dataset: plan.algorithms for plan in study.plans} == {
        "BackgroundDigits": ("ERM", "MLDG"),
        "ColoredMNIST-embedded": ("ERM",),
    }
    _, arm, head, mldg = study.left_out
    assert arm.startswith("ARM on BackgroundDigits, ColoredMNIST-embedded: ARM adds an input channel")
    assert head.startswith("ERMPlusPlus on BackgroundDigits, ColoredMNIST-embedded: ERMPlusPlus trains the classifier")
    assert mldg.startswith("MLDG on ColoredMNIST-embedded: MLDG: meta_test=2 of 2 training domains")
    assert {run.algorithm for run in draw_by_draw(study.plans)} == {"ERM", "MLDG"}
    with pytest.raises(
        UserError, match=r"none of the datasets .* can be trained here; the first, PACS: PACS not found"
    ):
        plan_preset(small, DEFAULTS.changed(network="mlp"), ("ARM",), data_root=tmp_path)
    with pytest.raises(UserError, match="steps must be at least 1"):
        plan_preset(small, DEFAULTS.changed(network="mlp", steps=0), names, data_root=tmp_path)


def test_draws_come_one_after_the_other_over_all_datasets(small: str, tmp_path: Path) -> None:
    runs = draw_by_draw(plan_preset(small, DEFAULTS, ("ERM", "DAT"), data_root=tmp_path, draws=2, trials=2).plans)
    assert [run.draw for run in runs] == [0] * (len(runs) // 2) + [1] * (len(runs) // 2)
    assert {run.dataset for run in runs[: len(runs) // 2]} == {"BackgroundDigits", "ColoredMNIST-embedded"}


def test_nothing_to_train_and_unknown_names_are_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(PRESETS, "domainbed", ("PACS",))
    with pytest.raises(
        UserError, match=r"none of the datasets of the preset domainbed .* the first, PACS: PACS not found"
    ):
        plan_preset("domainbed", DEFAULTS, data_root=tmp_path)
    with pytest.raises(UserError, match="unknown preset 'domainbet': did you mean 'domainbed'"):
        plan_preset("domainbet", DEFAULTS)


@pytest.mark.parametrize(
    ("device", "per_image", "measured", "passes"),
    [("cpu", 1e-2, ["ERM"], 12), ("cpu", 1e-4, ["ERM", "AT"], 2), ("meta", 1e-4, ["ERM"], 12)],
)
def test_the_quick_estimate_measures_erm_alone_where_steps_are_long_or_prepared(
    monkeypatch: pytest.MonkeyPatch, device: str, per_image: float, measured: list[str], passes: float
) -> None:
    seen = []

    def measure(run: Run, *_: object) -> tuple[float, float]:
        seen.append(run.algorithm)
        return per_image, 0.0

    monkeypatch.setattr("domainwise.sweeps.estimate._measure", measure)
    monkeypatch.setattr("domainwise.sweeps.estimate.pick_device", torch.device)
    runs = [
        plan_run("BackgroundDigits", name, "scene1", steps=100, hparams={"batch_size": 8}) for name in ("ERM", "AT")
    ]
    assert StepTimes(device, None, by_passes=True).estimate(runs) == pytest.approx(100 * 8 * per_image * passes)
    assert seen == measured


def test_time_is_up_and_the_runs_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    now, ended = [0.0], []
    monkeypatch.setattr(launch.time, "monotonic", lambda: now[0])

    def events() -> Generator[Event]:
        try:
            for step in range(100):
                now[0] += 1.0
                yield Event(a_run(), step)
        finally:
            ended.append(now[0])

    assert len(list(launch.until(events(), 7.5))) == 8 and ended == [8.0]


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("8h", 28800), ("2d", 172800)])
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert seconds_of(text, "time_limit") == seconds


@pytest.mark.parametrize("text", ["", "8", "h", "0h", "-1h", "1.5h", "8 h", "1234567s"])
def test_no_lengths_of_time(text: str) -> None:
    with pytest.raises(UserError, match="is no length of time: give a number and a unit"):
        seconds_of(text, "time_limit")
