"""Information bottlenecks: methods that keep little in the features."""

import torch
from torch import Tensor

from domainwise.algorithms.base import Draw, algorithm, batch_size, cross_entropy, restart
from domainwise.algorithms.risk import Penalised, irm_penalties
from domainwise.protocol.spaces import LogInteger, LogUniform


def feature_variance(z: Tensor) -> Tensor:
    """The mean variance of a feature [F] within a domain, of features [E, B, F]."""
    return z.var(1).mean()


@algorithm
class IB_ERM(Penalised):
    """An information bottleneck: mean_e [R_e + lambda mean_k Var_e(z_k)], z_k the features.

    Paper: Ahuja et al. 2021, https://arxiv.org/abs/2106.06607.
    Note: as in DomainBed the variance stands for the entropy; lambda is 0 before the anneal step, where Adam restarts.
    Try it: when features say more about the domain than the label needs.
    """

    needs_features = True
    moves_features = True
    before = 0.0
    begins_at = "anneal"
    space = Penalised.space | {"batch_size": batch_size(minimum=2)}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        return cross_entropy(self.classify(z), y).mean() + self.weight * feature_variance(z)


@algorithm
class IB_IRM(Penalised):
    """IRM with a bottleneck: mean_e [R_e + lambda |d/dw R_e(w f) at w=1|^2 + mu mean_k Var_e(z_k)], z_k the features.

    Paper: Ahuja et al. 2021, https://arxiv.org/abs/2106.06607.
    Note: IRM's square is estimated as in IRM, and lambda (`penalty`) is 1 before `anneal`; mu (`ib_penalty`) is 0
    before `ib_anneal`. Adam restarts at both steps.
    Try it: instead of IRM when all features together predict the label in every training domain, shortcut included.
    """

    needs_features = True
    moves_features = True
    space = Penalised.space | {
        "ib_penalty": LogUniform(-1, 5, default=100.0),
        "ib_anneal": LogInteger(0, 4, default=500),
        "batch_size": batch_size(minimum=2),
    }

    ib_weight: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("ib_weight", torch.zeros(()))

    def schedule(self, step: int, draw: Draw) -> None:
        super().schedule(step, draw)
        if step == self.hparams["ib_anneal"]:
            self.ib_weight.fill_(self.hparams["ib_penalty"])
            restart(self.optimizers["network"])

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        logits = self.classify(z)
        penalties = irm_penalties(logits, y)  # before the risks, as in IRM
        risk = cross_entropy(logits, y).mean() + self.weight * penalties.mean()
        return risk + self.ib_weight * feature_variance(z)
