"""A small finished sweep whose draws share their start, trained in this process."""

from pathlib import Path
from typing import Any

from domainwise.engine.train import train
from domainwise.sweeps.plan import Plan, plan_sweep
from small_datasets import make_folder

TINY: dict[str, Any] = {"network": "small-cnn", "image_size": 16, "steps": 4, "evaluate_every": 2}


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
