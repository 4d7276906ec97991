"""Fine-tuning: methods that make the most of the features a pre-trained network starts with."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import LR, Draw, algorithm, cross_entropy
from domainwise.algorithms.risk import ERM
from domainwise.core.errors import Unsuited
from domainwise.nets.network import Network
from domainwise.nets.stages import stages
from domainwise.protocol.spaces import ByScale, Choice, Fixed, HParams

VARIANCE, LEAST_VARIANCE = 0.1, 1e-5
"""Where MIRO's variances start, and what they stay above."""


@algorithm
class MIRO(ERM):
    """Features near those of the start: mean_e R_e + lambda mean_l E [log v_l + (z_l - z0_l)^2 / v_l].

    z_l and z0_l are the outputs of stage l of the network and of a frozen copy of its start (`nets.stages`: the stem
    and the four stages of a ResNet); v_l is a learned variance per channel, softplus of a bias.

    Paper: Cha et al. 2022, https://arxiv.org/abs/2203.10789.
    Note: a bound on the information that the features keep about the start's, with the paper's encoders: the mean is
    z_l itself, the variance does not depend on it, and the variances learn ten times as fast (`encoder_lr_factor`). The
    mean over stages is this project's; the released code sums over stages and halves, so for the five of a ResNet its
    lambda is 2.5 times as strong. The copy is not part of the model that predicts.
    Try it: with pre-trained weights, the larger the data they come from the better; from a random start it slows
    learning down.
    """

    needs_features = True
    moves_features = True
    passes = 1.7
    space = ERM.space | {
        "lambda": Choice((1.0, 0.1, 0.01, 0.001), default=0.1),
        "encoder_lr_factor": Fixed(10.0),
    }

    def setup(self) -> None:
        super().setup()
        bias = math.log(math.expm1(VARIANCE - LEAST_VARIANCE))
        self.biases = nn.ParameterList(
            nn.Parameter(torch.full((z.shape[1], *[1] * (z.ndim - 2)), bias)) for z in self._stage_examples()
        )
        self._start: list[Network] = []  # a list: modules in it are no part of this one, nor of its state
        if self.trainable:
            start = copy.deepcopy(self.network).requires_grad_(False).eval()
            self._start.append(start.to(self.problem.low.device, self.problem.low.dtype))

    def _stage_examples(self) -> list[Tensor]:
        """The output of every stage for one empty input."""
        features = copy.deepcopy(self.network.features).eval()
        weight = next(features.parameters(), torch.empty(0))
        with torch.no_grad():
            outputs, _ = stages(features, torch.zeros(1, *self.problem.shape, device=weight.device, dtype=weight.dtype))
        return outputs

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        encoder_lr = self.hparams["encoder_lr_factor"] * self.hparams["lr"]
        return {
            "network": self.adam(self.network.parameters()),
            "encoders": self.adam(self.biases, lr=encoder_lr),
        }

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        return self.descend(self.loss(x, y), "network", "encoders")

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        inputs = x.flatten(0, 1)
        outputs, z = self.network.stages(inputs)
        with torch.no_grad():
            starts, _ = self._start[0].stages(inputs)
        distances = []
        for output, start, bias in zip(outputs, starts, self.biases, strict=True):
            variance = F.softplus(bias) + LEAST_VARIANCE
            distances.append((variance.log() + (output - start).square() / variance).mean())
        risk = cross_entropy(self.classify(z.unflatten(0, x.shape[:2])), y).mean()
        return risk + self.hparams["lambda"] * torch.stack(distances).mean()


@algorithm
class ERMPlusPlus(ERM):
    """ERM++: mean_e R_e by the classifier alone for `head_steps` steps, then by all weights, which are averaged.

    Paper: Teterwak et al. 2025, https://arxiv.org/abs/2304.01973.
    Note: the classifier has an Adam of its own at first, with `head_lr` and without weight decay. A run has the average
    `sma` unless it names another; it begins 100 steps after the first phase, at step 600 as published. Tables show the
    averaged weights as "ERMPlusPlus + SMA". The paper then trains on all data: run the chosen steps with held_out=0.
    On small images the first phase is shorter and its rate higher; DomainBed has those of photographs everywhere.
    Try it: with pre-trained weights, as a strong plain baseline.
    """

    needs_features = True
    moves_features = True
    weight_average = "sma"
    space = ERM.space | {
        "head_lr": LR,
        "head_steps": ByScale(small=Fixed(100, whole=True), image=Fixed(500, whole=True)),
    }

    @classmethod
    def check_steps(cls, hparams: HParams, steps: int) -> None:
        if steps <= int(hparams["head_steps"] or 0):
            raise Unsuited(
                f"ERMPlusPlus trains the classifier alone for {hparams['head_steps']} steps, and there are {steps} in "
                "all: set more steps, or fewer head_steps",
                argument="steps",
            )

    @property
    def first_phase(self) -> int:
        return int(self.hparams["head_steps"])

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        head = self.adam(self.network.classifier.parameters(), lr="head_lr", weight_decay=0.0)
        return {"head": head, "network": self.adam(self.network.parameters())}

    def schedule(self, step: int, draw: Draw) -> None:
        super().schedule(step, draw)
        self.phase = "head" if step < self.hparams["head_steps"] else "network"

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        if self.phase == "network":
            return super().step(x, y)
        with torch.no_grad():
            z = self.represent(x)
        return self.descend(cross_entropy(self.classify(z), y).mean(), "head")
