"""A trained model, ready for use: it reads what it was trained on, and says which class and how sure."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm, Problem
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.data.environments import Environments
from domainwise.engine.assemble import make_network
from domainwise.engine.devices import pick_device
from domainwise.models.card import Card
from domainwise.models.evaluation import DomainScore, Evaluation
from domainwise.models.inputs import as_inputs
from domainwise.models.source import source
from domainwise.protocol.spaces import at_scale, override

if TYPE_CHECKING:
    from domainwise.models.drift import Drift

BATCH = 128
"""Inputs at once, except for algorithms whose predictions depend on their batch."""

Weights = Mapping[str, Tensor]


class Model:
    """Made by `fit` and `load`. Predicts in fp32, whatever precision it was trained in.

    Predictions of ARM and MTL depend on the batch they are in: such a model (`in_groups`) takes its inputs in the order
    given, in groups of the training batch size, and they must come from one domain.
    """

    def __init__(
        self, card: Card, weights: Weights, reference: Weights = MappingProxyType({}), device: str = "auto"
    ) -> None:
        place = pick_device(device)
        self.card = card
        self.reference = {domain: reference[domain] for domain in card.domains if domain in reference}
        nothing = torch.zeros(0, *card.shape, dtype=torch.float64 if card.vectors else torch.uint8)
        dtype, shape = (torch.float64, (-1,)) if card.vectors else (torch.float32, (-1, 1, 1))
        mean, std = (torch.tensor(values, dtype=dtype).view(shape) for values in (card.mean, card.std))
        labels = torch.zeros(0, dtype=torch.int64)
        self.reading = Environments("model", nothing, labels, {}, card.classes, mean, std).to(place)
        self.algorithm = _algorithm(card, self.reading)
        self.algorithm.load_state_dict(dict(weights))
        self.algorithm.eval()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.card.classes

    @property
    def domains(self) -> tuple[str, ...]:
        """Those it was trained on."""
        return tuple(self.card.domains)

    @property
    def device(self) -> torch.device:
        return self.reading.mean.device

    @property
    def in_groups(self) -> bool:
        """Whether a prediction depends on the batch it is in."""
        return self.algorithm.batch_dependent

    @property
    def batch_size(self) -> int:
        return int(self.algorithm.hparams["batch_size"]) if self.in_groups else BATCH

    def predict(self, images: Any, *, domain: str | None = None) -> npt.NDArray[np.str_]:
        """The class names, one per input.

        Inputs are uint8 arrays [N, C, H, W] of the training shape, image files, Pillow pictures (of any size), or float
        vectors [N, D]. `domain` names the training domain they all come from, if they do; only MTL makes use of it.
        """
        return np.asarray(self.classes)[self.predict_proba(images, domain=domain).argmax(1)]

    def predict_proba(self, images: Any, *, domain: str | None = None) -> npt.NDArray[np.float32]:
        """Probabilities [N, classes], in the order of `classes`."""
        return self.probabilities(as_inputs(images, self.card), domain).cpu().numpy()

    def probabilities(self, inputs: Tensor, domain: str | None = None) -> Tensor:
        """Of raw inputs, as a tensor on the model's device."""
        if domain is not None and domain not in self.domains:
            raise UserError(f"domain {domain!r} was not trained on (those were: {', '.join(self.domains)})")
        number = None if domain is None else self.domains.index(domain)
        return self._each(inputs, lambda x: self.algorithm.predict(x, number).softmax(1), len(self.classes))

    def features(self, images: Any) -> npt.NDArray[np.float32]:
        """What the classifier sees, [N, features]: for pictures of the data and for telling domains apart."""
        return self.embed(as_inputs(images, self.card)).cpu().numpy()

    def embed(self, inputs: Tensor) -> Tensor:
        """Features of raw inputs, as a tensor on the model's device."""
        return self._each(inputs, self.algorithm.embed, 0)

    def evaluate(self, environments: Environments | Path | str, *, data_root: Path | None = None) -> Evaluation:
        """Accuracy on every domain and class of labelled data: in memory, a folder or a dataset by name.

        Classes are matched by name.
        """
        if not isinstance(environments, Environments):
            environments = source(environments, data_root, self.card.shape[-1]).environments
        if environments.shape != self.card.shape:
            raise UserError(f"{environments.name} has inputs of shape {environments.shape}, not {self.card.shape}")
        if foreign := [name for name in environments.classes if name not in self.classes]:
            known = ", ".join(self.classes)
            raise UserError(f"{environments.name} has a class {foreign[0]!r} that the model has not (it has: {known})")
        return Evaluation({domain: self._score(environments, domain) for domain in environments.domains})

    def _score(self, environments: Environments, domain: str) -> DomainScore:
        rows = environments.rows(domain)
        inputs, labels = (part[int(rows[0]) : int(rows[-1]) + 1] for part in (environments.images, environments.labels))
        trained_on = domain in self.domains
        guesses = self.probabilities(inputs, domain if trained_on else None).argmax(1).tolist()
        confusion: dict[str, dict[str, int]] = {}
        for truth, guess in zip(labels.tolist(), guesses, strict=True):
            row = confusion.setdefault(environments.classes[truth], {})
            row[self.classes[guess]] = row.get(self.classes[guess], 0) + 1
        ordered = {name: confusion[name] for name in environments.classes if name in confusion}
        return DomainScore(ordered, trained_on)

    def drift(self, images: Any, *, seed: int = 0) -> "Drift":
        """How far new inputs, at least two, are from the training domains; see `domainwise.models.drift`."""
        from domainwise.models.drift import drift

        return drift(self, as_inputs(images, self.card), seed=seed)

    def save(self, folder: Path | str) -> Path:
        """As a folder: weights, what is known of them, and the features drift is measured against."""
        from domainwise.models.folder import save

        return save(self, Path(folder))

    def export(self, file: Path | str) -> Path:
        """As one file for other runtimes: .onnx, or .pt2 of torch.export; see `domainwise.models.export`."""
        from domainwise.models.export import SUFFIXES, export

        formats = {suffix: name for name, suffix in SUFFIXES.items()}
        if Path(file).suffix not in formats:
            raise UserError(f"{file}: name a file that ends in {' or '.join(formats)}")
        return export(self, formats[Path(file).suffix], Path(file))

    @torch.no_grad()
    def _each(self, inputs: Tensor, function: Callable[[Tensor], Tensor], width: int) -> Tensor:
        """The function of all inputs, batch by batch."""
        parts = [function(x) for x in self._batches(inputs)]
        return torch.cat(parts) if parts else torch.zeros(0, width, device=self.device)

    def _batches(self, inputs: Tensor) -> Iterator[Tensor]:
        for batch in inputs.split(self.batch_size) if len(inputs) else ():
            yield self.reading.normalise(batch.to(self.device))

    def __reduce__(self) -> Any:
        weights = {name: tensor.cpu() for name, tensor in self.algorithm.state_dict().items()}
        return type(self), (self.card, weights, self.reference, self.device.type)

    def __repr__(self) -> str:
        made = f"{self.card.algorithm} {self.card.network}, {counted(len(self.classes), 'class')}"
        return f"<Model {made}, trained on {counted(len(self.domains), 'domain')}>"


def _algorithm(card: Card, reading: Environments) -> Algorithm:
    """The algorithm the card describes, its weights still to be filled in."""
    method = ALGORITHMS[card.algorithm]
    legal = at_scale(method.space, "small")
    hparams = override(legal, {}, card.hparams, card.algorithm)
    if missing := [name for name in legal if name not in hparams]:
        raise UserError(f"{card.algorithm}: hyper-parameter {missing[0]} is missing")
    problem = Problem(tuple(card.domains.values()), len(card.classes), card.shape, reading.low, reading.high)
    with torch.random.fork_rng(devices=[]):
        network = make_network(card.network, problem, hparams, "fp32")
        return method(network, problem, hparams, torch.Generator(reading.mean.device))
