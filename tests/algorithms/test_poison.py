"""What a model must not have seen: poisoning it changes no bit of what is learned, with any algorithm.

Every image that may not touch a training (of the unseen domain, of a validation domain, of held-out splits) is replaced
by garbage with garbage labels, every number of such vectors by NaN. Judging goes on between the steps, on the poison.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from domainwise.algorithms import ALGORITHMS
from domainwise.data.catalogue import Dataset
from domainwise.data.environments import Environments
from domainwise.data.sources.folder import image_folder
from domainwise.engine.evaluation import evaluate, splits_to_evaluate
from domainwise.engine.session import Session
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run
from small_datasets import make_folder

EVERY = sorted(ALGORITHMS)
SINGLE = [name for name in EVERY if ALGORITHMS[name].needs_domains == 1]
DOMAINS = ("a", "b", "choosing", "unseen")
CPU = torch.device("cpu")
SOON = {"min_steps": 1, "phases": 2, "memory": 16, "anneal": 2, "ib_anneal": 2, "head_steps": 2}
"""So that what happens late in a training happens within a few steps."""


@cache
def images() -> Environments:
    random = torch.Generator().manual_seed(0)
    return Environments.from_arrays(
        {
            name: (
                torch.randint(0, 256, (20, 3, 16, 16), generator=random, dtype=torch.uint8),
                torch.arange(20) % 3,
            )
            for name in DOMAINS
        },
        mean=[0.4, 0.5, 0.6],
        std=[0.2, 0.3, 0.1],
    )


@cache
def vectors() -> Environments:
    random = torch.Generator().manual_seed(1)
    return Environments.from_arrays(
        {name: (torch.randn(20, 5, generator=random).numpy(), torch.arange(20) % 3) for name in DOMAINS}
    )


def plan(data: Environments, algorithm: str, **facts: Any) -> Run:
    described = Dataset.from_environments(data, validation=("choosing",), unseen=("unseen",))
    hparams = {"batch_size": 4} | {k: v for k, v in SOON.items() if k in ALGORITHMS[algorithm].space}
    given = {"steps": 4, "evaluate_every": 2, "full_curves": True, **facts}
    return plan_run(described, algorithm, "unseen", hparams=hparams, **given)


def forbidden(run: Run, data: Environments) -> Tensor:
    """The rows a training may not look at: all of domains not trained on, and the held-out split of the others."""
    trained = [data.split(domain, run.trial, run.held_out)["in"] for domain in run.train_domains]
    rest = torch.ones(len(data.images), dtype=torch.bool)
    rest[torch.cat(trained)] = False
    return rest.nonzero().flatten()


def poisoned(data: Environments, rows: Tensor) -> Environments:
    random = torch.Generator().manual_seed(2)
    inputs, labels = data.images.clone(), data.labels.clone()
    garbage = torch.randint(0, 256, inputs[rows].shape, generator=random, dtype=torch.uint8)
    inputs[rows] = torch.full_like(inputs[rows], torch.nan) if data.vectors else garbage
    labels[rows] = (labels[rows] + 1) % len(data.classes)
    return replace(data, images=inputs, labels=labels)


def learned(run: Run, data: Environments) -> tuple[dict[str, Tensor], list[object]]:
    """The state after a training, bit by bit, and the evaluations on the way."""
    with torch.random.fork_rng():
        session = Session(run, data, CPU)
        parts, scores = splits_to_evaluate(run, session.environments), []
        for step in range(run.steps):
            session.step()
            if run.evaluated_at(step):
                scores.append(evaluate(session.algorithm, session.environments, parts, run.train_domains))
    state = session.algorithm.state_dict()
    return state | {"mean": session.environments.mean, "std": session.environments.std}, scores


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("algorithm", EVERY)
def test_nothing_unseen_touches_what_is_learned(algorithm: str) -> None:
    run = plan(images(), algorithm)
    assert run.validation_domains == ("choosing",) and run.test_domains == ("unseen",)
    clean, scores = learned(run, images())
    spoilt, other_scores = learned(run, poisoned(images(), forbidden(run, images())))
    assert same(clean, spoilt)
    assert scores != other_scores, "the poison was there: it was evaluated on"


@pytest.mark.parametrize("algorithm", SINGLE)
def test_training_on_one_domain_looks_at_no_other(algorithm: str) -> None:
    run = plan(images(), algorithm, train_domains="a", setting="single")
    rows = forbidden(run, images())
    assert len(rows) == 3 * 20 + 4
    assert same(learned(run, images())[0], learned(run, poisoned(images(), rows))[0])


@pytest.mark.parametrize("algorithm", ["ERM", "DAT", "CORAL"])
def test_vectors_are_standardised_by_what_is_trained_on(algorithm: str) -> None:
    run = plan(vectors(), algorithm)
    clean, spoilt = learned(run, vectors())[0], learned(run, poisoned(vectors(), forbidden(run, vectors())))[0]
    assert all(torch.isfinite(tensor).all() for tensor in spoilt.values())
    assert same(clean, spoilt)


@pytest.mark.parametrize("streamed", [False, True], ids=["resident", "streamed"])
def test_augmented_and_streamed_batches_look_at_nothing_unseen(streamed: bool) -> None:
    run = plan(images(), "DAT", augmentation="domainbed")
    harmed = poisoned(images(), forbidden(run, images())).to("cpu", streamed=streamed)
    assert same(learned(run, images())[0], learned(run, harmed)[0])


def test_poison_in_training_images_is_noticed() -> None:
    run = plan(images(), "ERM")
    rows = images().split("a", run.trial, run.held_out)["in"]
    assert not same(learned(run, images())[0], learned(run, poisoned(images(), rows))[0])


def test_a_folders_unseen_domain_touches_nothing(tmp_path: Path) -> None:
    photos = make_folder(tmp_path / "photos")
    run = plan_run(image_folder(photos), "DAT", "lab", hparams={"batch_size": 4}, steps=3, image_size=16)
    clean = learned(run, image_folder(photos).load(image_size=16))[0]
    for file in (photos / "lab").rglob("*.png"):
        Image.new("RGB", (7, 9), "magenta").save(file)
    assert same(clean, learned(run, image_folder(photos).load(image_size=16))[0])
