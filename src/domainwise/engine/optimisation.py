"""Learning rates over time, and clipped gradients: for every optimiser of an algorithm, whatever its step does."""

from typing import Any

import torch

from domainwise.algorithms.base import Algorithm
from domainwise.protocol.recipe import CONSTANT, rate_factor
from domainwise.protocol.runs import Run


class LearningRates:
    """Sets the learning rates of an algorithm before each step, by the schedule of its run.

    On a GPU they are tensors that are filled in place: a captured step reads them, and need not be recorded again.
    """

    def __init__(self, algorithm: Algorithm, run: Run) -> None:
        self.run, self.optimizers = run, list(algorithm.optimizers.values())
        self.full = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in self.optimizers]
        device = algorithm.problem.low.device
        self.tensors = [[torch.tensor(lr, device=device) for lr in rates] for rates in self.full]
        self.on_gpu = device.type == "cuda"

    def set(self, step: int) -> None:
        """For the step of this number, from 0."""
        if self.run.lr_schedule == CONSTANT:
            return
        factor = rate_factor(self.run.lr_schedule, step, self.run.steps)
        for optimizer, rates, tensors in zip(self.optimizers, self.full, self.tensors, strict=True):
            for group, full, tensor in zip(optimizer.param_groups, rates, tensors, strict=True):
                group["lr"] = tensor.fill_(factor * full) if self.on_gpu else factor * full


def clip_gradients(algorithm: Algorithm, largest: float) -> None:
    """Before every step of an optimiser, scales its gradients so that their norm is at most this; never waits."""

    def clip(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, largest)

    for optimizer in algorithm.optimizers.values():
        optimizer.register_step_pre_hook(clip)
