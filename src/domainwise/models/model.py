"""A trained model: predicts classes and probabilities, evaluates, measures drift, saves and exports itself."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm
from domainwise.core import deprecation
from domainwise.core.errors import UserError
from domainwise.core.phrasing import counted
from domainwise.data.environments import Environments
from domainwise.data.find import load_dataset
from domainwise.data.fingerprints import fingerprints
from domainwise.data.images import progress
from domainwise.data.preprocessing import Preprocessing
from domainwise.engine.assemble import EnsembleAlgorithm, make_algorithm
from domainwise.engine.devices import pick_device
from domainwise.engine.metrics import scores_of
from domainwise.models.card import Card
from domainwise.models.decisions import abstain_threshold, class_set, sets_threshold
from domainwise.models.evaluation import DomainScore, Evaluation
from domainwise.models.inputs import as_inputs
from domainwise.models.unseen import describe_unseen
from domainwise.protocol.calibration import Outcomes
from domainwise.protocol.spaces import HParams, at_scale, override, recorded

if TYPE_CHECKING:
    from domainwise.models.adapt import AdaptedModel
    from domainwise.models.drift import Drift

BATCH = 128
"""Inputs per forward pass, except for algorithms whose predictions depend on their batch."""

LARGEST_BUFFERS = 1 << 29
"""Bytes of what an algorithm keeps besides its weights."""

StateDict = Mapping[str, Tensor]


class Model:
    """Made by `fit` and `load_model`. Predicts in fp32, whatever precision it was trained in.

    Predictions of ARM and MTL depend on their batch: such a model (`batch_dependent`) splits its inputs, in order, into
    batches of the training batch size, and all of them must come from one domain.
    """

    def __init__(
        self,
        card: Card,
        weights: StateDict,
        reference: StateDict = MappingProxyType({}),
        device: str = "auto",
        trained_on: Tensor | None = None,
        outcomes: Mapping[str, Outcomes] = MappingProxyType({}),
    ) -> None:
        self.card = card
        self.outcomes = dict(outcomes)  # of the calibration domains; empty where the model is not calibrated
        self.trained_on = trained_on  # fingerprints of all training samples; None where a model keeps none
        self.reference = {domain: reference[domain] for domain in card.domains if domain in reference}
        self.preprocessing = card.preprocessing.to(pick_device(device))
        self.algorithm = build_algorithm(card, self.preprocessing)
        self.algorithm.load_state_dict(dict(weights))

    @property
    def classes(self) -> tuple[str, ...]:
        return self.card.classes

    @property
    def domains(self) -> tuple[str, ...]:
        """The training domains."""
        return tuple(self.card.domains)

    @property
    def weights(self) -> str:
        """Of which step or steps the weights are, or what they are made of, in words."""
        return self.card.weights

    @property
    def unseen(self) -> str:
        """The accuracy to expect on domains it never saw, in words (see `models.unseen`)."""
        return describe_unseen(self.card.training)

    @property
    def temperature(self) -> float:
        """By which logits are divided; 1 where the model is not calibrated."""
        return 1.0 if self.card.calibration is None else self.card.calibration.temperature

    @property
    def calibration(self) -> str:
        """On what its probabilities are calibrated, in words."""
        return "not calibrated" if self.card.calibration is None else str(self.card.calibration)

    @property
    def device(self) -> torch.device:
        return self.preprocessing.mean.device

    @property
    def batch_dependent(self) -> bool:
        """Whether a prediction depends on the other inputs of its batch."""
        return self.algorithm.batch_dependent

    @property
    def in_groups(self) -> bool:
        deprecation.warn("Model.in_groups", "Model.batch_dependent")
        return self.batch_dependent

    @property
    def batch_size(self) -> int:
        return int(self.algorithm.hparams["batch_size"]) if self.batch_dependent else BATCH

    def predict(self, images: Any, *, domain: str | None = None, abstain: str = "") -> npt.NDArray[Any]:
        """The class names, one per input; with `abstain` ("coverage=0.9", "risk=0.05"), None for "I don't know".

        Inputs are uint8 arrays [N, C, H, W] of the training shape, image files or Pillow images (of any size), or float
        vectors [N, D]. `domain` names the training domain they all come from, if they do; only MTL uses it.
        """
        threshold = abstain_threshold(self, abstain) if abstain else None
        p = self.predict_proba(images, domain=domain)
        names = np.asarray(self.classes)[p.argmax(1)]
        if threshold is None:
            return names
        answers = names.astype(object)
        answers[p.max(1) < threshold] = None
        return answers

    def predict_sets(self, images: Any, level: float = 0.9, *, domain: str | None = None) -> list[tuple[str, ...]]:
        """Conformal sets: the classes of every input, the most likely first; see `protocol.calibration`."""
        threshold = sets_threshold(self, level)
        return [class_set(self.classes, row, threshold) for row in self.predict_proba(images, domain=domain).tolist()]

    def predict_proba(self, images: Any, *, domain: str | None = None) -> npt.NDArray[np.float32]:
        """Probabilities [N, classes], in the order of `classes`."""
        return self.probabilities(as_inputs(images, self.preprocessing), domain).cpu().numpy()

    def probabilities(self, inputs: Tensor, domain: str | None = None) -> Tensor:
        """Calibrated probabilities of raw inputs, as a tensor on the model's device."""
        if domain is not None and domain not in self.domains:
            raise UserError(f"domain {domain!r} was not trained on (those were: {', '.join(self.domains)})")
        number = None if domain is None else self.domains.index(domain)
        return self._each(
            inputs, lambda x: (self.algorithm.predict(x, number) / self.temperature).softmax(1), len(self.classes)
        )

    def features(self, images: Any) -> npt.NDArray[np.float32]:
        """The features that the classifier reads, [N, features]."""
        return self.embed(as_inputs(images, self.preprocessing)).cpu().numpy()

    def embed(self, inputs: Tensor) -> Tensor:
        """Features of raw inputs, as a tensor on the model's device."""
        return self._each(inputs, self.algorithm.embed, 0)

    def evaluate(self, environments: Environments | Path | str, *, data_root: Path | None = None) -> Evaluation:
        """Accuracy and further metrics on labelled data: Environments, a folder, or a dataset by name.

        Metrics of probabilities are those of calibrated ones, if the model is calibrated. Classes are matched by name.
        Samples that the model was trained on, known by their fingerprints, are left out and counted apart.
        """
        if not isinstance(environments, Environments):
            environments = load_dataset(environments, data_root, self.card.shape[-1])
        if environments.shape != self.card.shape:
            raise UserError(f"{environments.name} has inputs of shape {environments.shape}, not {self.card.shape}")
        if foreign := [name for name in environments.classes if name not in self.classes]:
            known = ", ".join(self.classes)
            raise UserError(f"{environments.name} has a class {foreign[0]!r} unknown to the model (known: {known})")
        scores = {domain: self._score(environments, domain) for domain in environments.domains}
        return Evaluation(scores, self.trained_on is not None)

    def _score(self, environments: Environments, domain: str) -> DomainScore:
        rows = environments.rows(domain)
        inputs, labels = (part[int(rows[0]) : int(rows[-1]) + 1] for part in (environments.images, environments.labels))
        test_rows = domain in environments.test_rows_of(self.domains)
        known_domain = domain in self.domains
        probabilities = self.probabilities(inputs, domain if known_domain else None).cpu()
        seen = torch.zeros(len(inputs), dtype=torch.bool)
        if self.trained_on is not None:
            seen = torch.isin(fingerprints(inputs), self.trained_on)
        only_seen = bool(seen.all())
        counted_rows = (~seen | only_seen).nonzero().flatten()
        numbers = torch.tensor([self.classes.index(name) for name in environments.classes])[labels.cpu()]
        groups = None if environments.groups is None else environments.groups[rows[counted_rows]].cpu()
        scores = scores_of(probabilities[counted_rows], numbers[counted_rows], groups)
        confusions: tuple[dict[str, dict[str, int]], ...] = ({}, {})
        for truth, guess, known in zip(labels.tolist(), probabilities.argmax(1).tolist(), seen.tolist(), strict=True):
            row = confusions[known and not only_seen].setdefault(environments.classes[truth], {})
            row[self.classes[guess]] = row.get(self.classes[guess], 0) + 1
        ordered = [{name: part[name] for name in environments.classes if name in part} for part in confusions]
        trained_on = known_domain or test_rows or bool(seen.any())
        return DomainScore(ordered[0], trained_on, ordered[1], only_seen, test_rows, scores)

    def drift(self, images: Any, *, seed: int = 0) -> "Drift":
        """How far new inputs, at least two, are from the training domains; see `domainwise.models.drift`."""
        from domainwise.models.drift import drift

        return drift(self, as_inputs(images, self.preprocessing), seed=seed)

    def adapt(self, method: str, **settings: Any) -> "AdaptedModel":
        """A copy that adapts to the inputs it predicts, without labels: "t3a" (with `keep`) or "tent" (with `lr`).

        All inputs must come from one domain, and predictions depend on their order; see `domainwise.models.adapt`.
        """
        from domainwise.models.adapt import AdaptedModel

        return AdaptedModel(self, method, **settings)

    def save(self, folder: Path | str) -> Path:
        """Writes a folder: weights, model.json, and the reference features that drift is measured against."""
        from domainwise.models.folder import save

        return save(self, Path(folder))

    def export(self, file: Path | str) -> Path:
        """Writes one file for other runtimes: .onnx, or .pt2 of torch.export; see `domainwise.models.export`."""
        from domainwise.models.export import SUFFIXES, export

        formats = {suffix: name for name, suffix in SUFFIXES.items()}
        if Path(file).suffix not in formats:
            raise UserError(f"{file}: name a file that ends in {' or '.join(formats)}")
        return export(self, formats[Path(file).suffix], Path(file))

    @torch.no_grad()
    def _each(self, inputs: Tensor, function: Callable[[Tensor], Tensor], width: int) -> Tensor:
        """The function of all inputs, batch by batch."""
        one_batch, parts = len(inputs) <= self.batch_size, []
        with (progress.silent if one_batch else progress.show)("images through the model", len(inputs)) as advance:
            for batch in self._batches(inputs):
                parts.append(function(batch))
                advance(len(batch))
        return torch.cat(parts) if parts else torch.zeros(0, width, device=self.device)

    def _batches(self, inputs: Tensor) -> Iterator[Tensor]:
        for batch in inputs.split(self.batch_size) if len(inputs) else ():
            yield self.preprocessing.normalise(batch.to(self.device))

    def __reduce__(self) -> Any:
        weights = {name: tensor.cpu() for name, tensor in self.algorithm.state_dict().items()}
        return type(self), (self.card, weights, self.reference, self.device.type, self.trained_on, self.outcomes)

    def __repr__(self) -> str:
        made = f"{self.card.algorithm} {self.card.network}, {counted(len(self.classes), 'class')}"
        return f"<Model {made}, trained on {counted(len(self.domains), 'domain')}>"


def build_algorithm(card: Card, preprocessing: Preprocessing) -> Algorithm:
    """What the card describes, for prediction, with fresh weights."""
    sizes = tuple(card.domains.values())
    made = [
        make_algorithm(
            card.algorithm,
            card.network,
            _checked(card, hparams),
            preprocessing,
            sizes,
            architecture=card.architecture,
        )
        for hparams in card.members or (card.hparams,)
    ]
    return EnsembleAlgorithm(made) if card.members else made[0]


def check_sizes(card: Card, weights: StateDict) -> None:
    """Raises UserError if the weights do not fit the card, before any memory is allocated for what the card says."""
    try:
        with torch.device("meta"):
            planned = build_algorithm(card, card.preprocessing.to(torch.device("meta")))
    except (NotImplementedError, RuntimeError):  # a network of the user's that cannot be built without memory
        return
    for name, tensor in planned.state_dict().items():
        if name not in weights or weights[name].shape != tensor.shape:
            shape = list(weights[name].shape) if name in weights else "missing"
            raise UserError(f"the weights do not fit the card: {name} is {shape} instead of {list(tensor.shape)}")
    known = sum(tensor.nbytes for tensor in weights.values())
    needed = sum(tensor.nbytes for tensor in (*planned.parameters(), *planned.buffers()))
    if needed > known + LARGEST_BUFFERS:
        raise UserError(f"the card asks for {needed >> 20:,} MiB, but there are {known >> 20:,} MiB of weights")


def _checked(card: Card, hparams: HParams) -> HParams:
    """Hyper-parameters of the card, checked: all that the algorithm has, with legal values."""
    space = at_scale(ALGORITHMS[card.algorithm].space, "small")
    hparams = override(space, {}, hparams, card.algorithm)
    if missing := [name for name in recorded(space) if name not in hparams]:
        raise UserError(f"{card.algorithm}: hyper-parameter {missing[0]} is missing")
    return hparams
