"""A small finished sweep whose draws share their start, trained in this process."""

from pathlib import Path
from typing import Any

from torch import nn

from domainwise.engine.train import train
from domainwise.nets.network import network
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps.plan import Plan, plan_sweep, saved_plans
from small_datasets import make_folder

TINY: dict[str, Any] = {"network": "small-cnn", "image_size": 16, "steps": 4, "evaluate_every": 2}


def register_tiny_norm() -> str:
    """A network with a BatchNorm that learns its statistics; its name."""

    @network("tiny-norm")
    class TinyNorm(nn.Sequential):
        out_features = 3

        def __init__(self, shape: tuple[int, ...]) -> None:
            convolution = nn.Conv2d(shape[0], 3, 3, stride=4)
            super().__init__(convolution, nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    return "tiny-norm"


def plan_soup(photos: Path, **changes: Any) -> Plan:
    """ERM in the space "soup", three draws, one domain left out."""
    search = {"draws": 3, "trials": 1, "space": "soup", "test_domains": ["clinic"], "hparams": {"batch_size": 4}}
    return plan_sweep(str(photos), ["ERM"], **{**search, **TINY, **changes})


def train_all(plan: Plan, out: Path) -> Path:
    """Trains every run of a plan into a folder, and leaves the plan there."""
    for run in plan.runs():
        train(run, out, device="cpu")
    plan.save(out)
    return out


def soup_sweep(folder: Path, **changes: Any) -> Path:
    """The folder of such a sweep; its data lie beside it."""
    return train_all(plan_soup(make_folder(folder / "photos"), **changes), folder / "sweep")


def trained_runs(sweep: Path) -> list[RunFolder]:
    """The runs of its plan, in their order."""
    (plan,) = saved_plans(sweep)
    return [RunFolder(sweep, run) for run in plan.runs()]
