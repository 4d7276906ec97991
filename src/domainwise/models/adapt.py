"""Adaptation at prediction time: a model that adjusts itself to the inputs it predicts, without labels.

    T3A    class centroids of confident features take the place of the classifier; no gradients
    Tent   normalisation by the statistics of the batch, and descent of its entropy on normalisation's scale and shift

Both assume that all inputs come from one domain. Predictions depend on the order and the number of the inputs. They are
made batch by batch, and nothing of it changes the model that was adapted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from domainwise import kernels
from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError, unknown
from domainwise.core.optimizers import Adam
from domainwise.data.environments import Environments
from domainwise.engine.assemble import linear_classifier
from domainwise.models.evaluation import DomainScore
from domainwise.models.model import BATCH, Model, build_algorithm

KEEP = 100
"""Supports of a class that T3A keeps. The paper chooses among 1, 5, 20, 50, 100 and all (-1)."""
LR = 1e-3
"""The step size of Tent's Adam."""
LARGEST_LR = 1.0
ASSUMES = (
    "{name} adapts to the images as they come: all must be from one domain, and predictions depend on their order and "
    "number; the saved model stays as it is"
)


def entropy(logits: Tensor) -> Tensor:
    """-sum_y p(y|x) log p(y|x) of every row of logits [N, classes]."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


class T3A:
    """Class centroids of confident features in place of the classifier.

        S_k = {w_k / |w_k|} at first; a feature z joins S_k, as z / |z|, for the class k that the classifier gives it
        keep of every S_k those with the `keep` lowest entropies of the classifier (-1: all)
        p(k|z) = softmax_k(z . c_k),    c_k = the mean of S_k, scaled to length one

    The features of a batch join before it is predicted.

    Paper: Iwasawa and Matsuo, NeurIPS 2021, https://openreview.net/forum?id=e_yvNqkJKAW.
    Note: the released code gives w_k the class that the classifier gives it, which need not be k and can leave a class
    without support; here it is k, as in the paper. The length of c_k is that of the released code, which made the
    paper's numbers: with the plain mean, classes whose features differ more would lose to compact ones.
    """

    def __init__(self, algorithm: Algorithm, keep: int = KEEP) -> None:
        classifier = linear_classifier(algorithm, "T3A")
        if isinstance(keep, bool) or not isinstance(keep, int) or not (keep == -1 or keep >= 1):
            raise UserError(f"T3A keeps at least 1 support per class, or all (-1), not {keep!r}")
        network, self.keep = algorithm.network, keep
        self.network = network
        with torch.no_grad():
            weight = classifier.weight.detach()
            self.supports = F.normalize(weight, dim=1)
            self.labels = torch.arange(len(weight), device=weight.device)
            self.entropies = entropy(network.classify(weight))

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Logits [N, classes] of inputs [N, ...], after their features have joined the supports."""
        z = self.network.represent(x)
        logits = self.network.classify(z)
        self.supports = torch.cat([self.supports, F.normalize(z, dim=1)])
        self.labels = torch.cat([self.labels, logits.argmax(1)])
        self.entropies = torch.cat([self.entropies, entropy(logits)])
        if self.keep > 0:
            self._filter()
        return z @ self.centroids().T

    def _filter(self) -> None:
        order = self.entropies.argsort(stable=True)
        of_class = F.one_hot(self.labels[order], self.network.classes)
        ranks = (of_class.cumsum(0) * of_class).sum(1)  # 1 for the most confident of a class
        rows = order[ranks <= self.keep].sort().values
        self.supports, self.labels, self.entropies = self.supports[rows], self.labels[rows], self.entropies[rows]

    def centroids(self) -> Tensor:
        """[classes, features]."""
        of_class = F.one_hot(self.labels, self.network.classes).to(self.supports.dtype)
        return F.normalize(of_class.T @ self.supports, dim=1)


class Tent:
    """Entropy descent on the scale and shift of normalisation.

        predict with f(x; gamma, beta), BatchNorm by the mean and variance of the batch
        (gamma, beta) <- Adam step down mean_i H(softmax f(x_i))

    One step per batch, after its prediction, which the next batch is the first to see. GroupNorm and LayerNorm have no
    statistics of a batch: only their scale and shift adapt. A batch of a single input has no statistics either: it is
    predicted with those of the training, and makes no step.

    Paper: Wang et al., ICLR 2021, https://arxiv.org/abs/2006.10726 (Adam with 0.001 and batches of 128 for small
    images).
    """

    def __init__(self, algorithm: Algorithm, lr: float = LR) -> None:
        if algorithm.batch_dependent:
            raise UserError(f"Tent: predictions of {type(algorithm).__name__} depend on their batch already")
        kinds = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
        norms = [m for m in algorithm.modules() if isinstance(m, kinds) and isinstance(m.weight, nn.Parameter)]
        if not norms:
            raise UserError("Tent adapts normalisation layers, and this network has none: use t3a")
        if not 0 < lr <= LARGEST_LR:
            raise UserError(f"Tent's step size must be above 0 and at most {LARGEST_LR:g}, not {lr:g}")
        self.algorithm = algorithm
        algorithm.requires_grad_(False)
        self.parameters = [p for norm in norms for p in norm.parameters()]
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.batch_norms = [norm for norm in norms if isinstance(norm, _BatchNorm)]
        self.has_group_norm = any(isinstance(norm, nn.GroupNorm) for norm in norms)
        self.optimizer = Adam(self.parameters, lr)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits [N, classes] of inputs [N, ...], before the step that they make."""
        if len(x) < 2:
            with torch.no_grad():
                return self.algorithm.predict(x)
        if self.has_group_norm:  # whose gradient on a CPU crashes if that of its input is not wanted (torch 2.13)
            x = x.detach().requires_grad_()
        with torch.enable_grad(), kernels.disabled(), self._batch_statistics():
            logits = self.algorithm.predict(x)
            self.optimizer.zero_grad()
            entropy(logits).mean().backward()
        self.optimizer.step()
        return logits.detach()

    @contextmanager
    def _batch_statistics(self) -> Iterator[None]:
        """Within it, BatchNorm has no stored statistics, frozen or not: it uses those of the batch."""
        stored = [(norm, norm.running_mean, norm.running_var) for norm in self.batch_norms]
        for norm in self.batch_norms:
            norm.running_mean = norm.running_var = None
        try:
            yield
        finally:
            for norm, mean, variance in stored:
                norm.running_mean, norm.running_var = mean, variance


ADAPTATIONS: dict[str, Callable[..., Callable[[Tensor], Tensor]]] = {"t3a": T3A, "tent": Tent}
SETTINGS = {"t3a": "keep", "tent": "lr"}
"""What can be set of each."""


class AdaptedModel(Model):
    """A copy of a model that adapts to the inputs it predicts, batch by batch, in their order, over all calls.

    `reset` takes it back to the model. It cannot be saved or exported: it is the model and all it has predicted.
    """

    def __init__(self, model: Model, method: str, **settings: Any) -> None:
        if method not in ADAPTATIONS:
            raise unknown("way to adapt", method, ADAPTATIONS)
        if foreign := [name for name in settings if name != SETTINGS[method]]:
            raise UserError(f"{method} has no {foreign[0]}; it has: {SETTINGS[method]}")
        self.model, self.method, self.settings = model, method, settings
        self.card, self.preprocessing = model.card, model.preprocessing
        self.trained_on, self.reference = model.trained_on, model.reference
        self.outcomes = {}  # thresholds of the model do not hold for what it becomes
        self.reset()

    def reset(self) -> None:
        """Forgets all it has adapted to."""
        self.algorithm = build_algorithm(self.card, self.preprocessing)
        self.algorithm.load_state_dict(self.model.algorithm.state_dict())
        self.adaptation = ADAPTATIONS[self.method](self.algorithm, **self.settings)

    @property
    def assumes(self) -> str:
        """What must hold for its predictions to mean anything, in words."""
        return ASSUMES.format(name=self.method)

    @property
    def batch_dependent(self) -> bool:
        return True

    @property
    def batch_size(self) -> int:
        return BATCH

    def probabilities(self, inputs: Tensor, domain: str | None = None) -> Tensor:
        """Probabilities of raw inputs, to which it adapts; not calibrated. A training domain makes no difference."""
        del domain
        return self._each(inputs, lambda x: self.adaptation(x).softmax(1), len(self.classes))

    def _score(self, environments: Environments, domain: str) -> DomainScore:
        """Every domain is adapted to anew."""
        self.reset()
        return super()._score(environments, domain)

    def save(self, folder: object) -> Any:
        raise UserError(f"a model adapted to its inputs is not saved to {folder}: save the model, and adapt it again")

    def export(self, file: object) -> Any:
        raise UserError(f"a model adapted to its inputs is not exported to {file}: export the model itself")

    def __reduce__(self) -> Any:
        return _adapted, (self.model, self.method, self.settings)


def _adapted(model: Model, method: str, settings: dict[str, Any]) -> AdaptedModel:
    return AdaptedModel(model, method, **settings)
