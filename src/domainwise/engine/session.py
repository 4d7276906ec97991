"""One training in memory: built from a Run and its data, advanced step by step, saved and restored exactly."""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from domainwise.algorithms.base import Algorithm
from domainwise.core import seeds
from domainwise.core.errors import UserError
from domainwise.data.augment import for_augmentation, preparation
from domainwise.data.balance import chances
from domainwise.data.batches import Batches, batches_of
from domainwise.data.environments import Environments
from domainwise.engine.assemble import as_read_by, make_algorithm
from domainwise.engine.averaging import WeightAverage
from domainwise.engine.batch_norm import BATCHES
from domainwise.engine.execution import Execution
from domainwise.engine.execution.ranks import Ranks
from domainwise.engine.frozen_features import trains_on_features
from domainwise.engine.optimisation import LearningRates, clip_gradients
from domainwise.engine.probe_start import fit_classifier
from domainwise.engine.swad import SwadAverage
from domainwise.protocol.dataset_names import stream_name
from domainwise.protocol.runs import Run


class Session:
    """The algorithm, its batches and its random streams.

    Initial weights, batches, augmentation and noise are separate streams that depend on the dataset, the domains, draw,
    trial and seed, not on the algorithm: two algorithms of one trial start from the same weights and see the same
    batches, so their results are paired. With the run's `shared_start` all draws have the initial weights of draw 0.
    `execution` defines how steps run; by default the fastest way on the device.
    A session that is `resumed` will load a state: it does not compute the weights that a training starts from.
    `features` are the data as features that were computed beforehand, where the run can use them.
    """

    def __init__(
        self,
        run: Run,
        environments: Environments,
        device: torch.device,
        data_root: Path | None = None,
        *,
        execution: Execution | None = None,
        resumed: bool = False,
        features: Environments | None = None,
    ) -> None:
        self.run, self.device = run, device
        keys, start = stream_keys(run), stream_keys(replace(run, draw=0) if run.shared_start else run)
        rows = [environments.split(domain, run.trial, run.held_out)["in"] for domain in run.train_domains]
        read = for_augmentation(run.augmentation, as_read_by(run.network, environments))
        inputs = read.standardised(torch.cat(rows)).to(device)
        given = features.to(device) if features is not None else None
        self.environments = inputs if given is None or not trains_on_features(run) else given
        probe = partial(fit_classifier, environments=given or inputs, rows=rows, given_features=given is not None)
        torch.manual_seed(seeds.seed("weights", *start))
        self.algorithm = make_algorithm(
            run.algorithm,
            run.network,
            run.hparams,
            inputs.preprocessing,
            [len(part) for part in rows],
            run.precision,
            noise=seeds.generator("noise", *keys, device=device),
            weights=run.weights,
            data_root=data_root,
            freeze=run.freeze,
            train=run.train,
            layer_decay=run.layer_decay,
            start=probe if run.start == "probe" and not resumed else None,
        )
        if self.environments is given:
            self.algorithm.network.given_features = True
        stream = seeds.generator("batches", *keys, device=device)
        self.augmentation = seeds.generator("augmentation", *keys, device=device)
        prepare = preparation(run.augmentation, self.environments, self.augmentation)
        size, balanced = int(self.algorithm.hparams["batch_size"]), chances_of(run, self.environments, rows)
        self.batches = batches_of(self.environments, rows, size, stream, prepare, balanced)
        self.rates = LearningRates(self.algorithm, run)
        if run.clip_gradient:
            clip_gradients(self.algorithm, run.clip_gradient)
        self.loss_sum = torch.zeros((), device=device)
        self.loss_steps = 0
        self.next_step = 0
        self.average = _weight_average(run, self.algorithm, self.environments, rows, keys) if run.average else None
        self.execution = execution or Execution.choose(Ranks(device), run.steps)
        self.execution.check(self.algorithm, run.network)
        self.captured = self.execution.captured_step(
            self.algorithm,
            tensors=[self.loss_sum, *([] if self.average is None else [self.average.mean])],
            generators=[self.augmentation] if self.environments.streamed else [stream, self.augmentation],
            settle=self.batches.settle,
            prepare=prepare,
        )

    def step(self) -> None:
        """Draws a batch and makes one update. Never waits for the device."""
        self.rates.set(self.next_step)
        self.algorithm.schedule(self.next_step, self.batches.draw)
        if self.average is not None:
            self.average.schedule(self.next_step)
        self.batches.advance()
        if self.captured is None:
            self.update()
        else:
            self.captured(self.update)
        self.next_step += 1
        self.loss_steps += 1

    def update(self) -> None:
        self.loss_sum += self.algorithm.step(*self.batches.current())
        if self.average is not None:
            self.average.update()

    @property
    def frozen(self) -> list[str]:
        """The names of the weights that do not change."""
        features = "network.features."
        if self.run.freeze:
            return [name for name in self.algorithm.state_dict() if name.startswith(features)]
        if not self.run.train:
            return []
        return [
            name for name, p in self.algorithm.named_parameters() if name.startswith(features) and not p.requires_grad
        ]

    def take_training_loss(self) -> float:
        """The mean loss of the steps since the last call; NaN or infinite if one of them was."""
        loss = self.loss_sum.item() / max(1, self.loss_steps)
        self.loss_sum.zero_()  # in place: captured steps add to this tensor
        self.loss_steps = 0
        return loss

    def state(self) -> dict[str, Any]:
        """Everything later steps depend on."""
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return {
            "next_step": self.next_step,
            "loss_sum": self.loss_sum,
            "loss_steps": self.loss_steps,
            "algorithm": self.algorithm.state(),
            "batches": self.batches.state(),
            "augmentation": self.augmentation.get_state(),
            "torch": torch.get_rng_state(),
            "cuda": cuda,
        } | ({} if self.average is None else {"average": self.average.state()})

    def load_state(self, state: dict[str, Any]) -> None:
        saved_on = "cpu" if state["cuda"] is None else "cuda"
        if saved_on != self.device.type:  # the random streams of CPU and GPU differ
            how = f"continue on {saved_on}, or delete checkpoint.pt in {self.run.id} to start again"
            message = f"{self.run}: its checkpoint was made on {saved_on}, this is {self.device.type}; {how}"
            raise UserError(message, argument="device")
        self.next_step, self.loss_steps = (operator.index(state[name]) for name in ("next_step", "loss_steps"))
        self.loss_sum.copy_(state["loss_sum"])
        self.algorithm.load_state(state["algorithm"])
        if self.average is not None:
            self.average.load_state(state["average"])
        self.batches.load_state(state["batches"])
        self.augmentation.set_state(state["augmentation"])
        torch.set_rng_state(state["torch"])
        if state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"], self.device)
        if self.captured is not None:
            self.captured.discard_graphs()


def stream_keys(run: Run) -> tuple[str | int, ...]:
    """What all random streams of a run depend on."""
    domains = (*run.train_domains, "unseen", *run.test_domains)
    return (stream_name(run.dataset), *domains, run.draw, run.trial, run.seed)


def chances_of(run: Run, environments: Environments, rows: Sequence[Tensor]) -> list[Tensor] | None:
    """How often a run draws each of the rows; None where equally often."""
    return chances(environments, rows, run.balance, run.class_weights)


def _weight_average(
    run: Run,
    algorithm: Algorithm,
    environments: Environments,
    rows: Sequence[Tensor],
    keys: Sequence[str | int],
) -> WeightAverage:
    kind = SwadAverage if run.average == "swad" else WeightAverage
    batches = partial(fresh_batches, run, environments, rows, int(algorithm.hparams["batch_size"]), keys)
    return kind(run, algorithm, batches)


def fresh_batches(
    run: Run, environments: Environments, rows: Sequence[Tensor], batch_size: int, keys: Sequence[str | int]
) -> Iterator[Tensor]:
    """Inputs of a few training batches, the same at every call; the streams of the training stay as they are."""
    device = environments.device
    environments = for_augmentation(run.augmentation, environments).to(device)
    stream = seeds.generator("statistics", *keys, device=device)
    augmentation = seeds.generator("statistics", "augmentation", *keys, device=device)
    batches = Batches(environments, rows, batch_size, stream, chances=chances_of(run, environments, rows))
    augmenter = preparation(run.augmentation, environments, augmentation)
    prepare: Callable[..., Tensor] = augmenter or environments.normalise
    for _ in range(BATCHES):
        *images, _ = batches.next()
        yield prepare(*images)
