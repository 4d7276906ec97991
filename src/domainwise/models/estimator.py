"""A scikit-learn estimator: `DomainGeneralizer(algorithm="DAT", eps=2.0).fit(X, y, domains=d).predict(X)`."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from domainwise.algorithms import ALGORITHMS
from domainwise.data.environments import Environments
from domainwise.models.fit import fit
from domainwise.models.model import Model


class DomainGeneralizer(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifies vectors [n, D] (or uint8 images [n, C, H, W]) from unseen domains.

    `fit` takes `domains`, the domain of every sample; by default all samples are of one domain. Further keyword
    arguments are the algorithm's hyper-parameters (`eps`, `lr`, `batch_size`, ...). A grid search may vary them, and
    the algorithm together with them.
    `held_out` is the fraction of every domain that is not trained on but used as the reference for drift. With an
    `average` ("ema", "sma" or "swad") the model has averaged weights. The fitted `model_` is a `Model`: it can be
    saved, exported and checked for drift.
    """

    classes_: npt.NDArray[Any]
    model_: Model

    def __init__(
        self,
        algorithm: str = "DAT",
        *,
        steps: int = 300,
        network: str | None = None,
        held_out: float = 0.0,
        average: str = "none",
        precision: str = "auto",
        device: str = "auto",
        random_state: Any = 0,
        **hparams: Any,
    ) -> None:
        self.algorithm = algorithm
        self.steps = steps
        self.network = network
        self.held_out = held_out
        self.average = average
        self.precision = precision
        self.device = device
        self.random_state = random_state
        self._hparams = hparams

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {**super().get_params(deep), **self._hparams}

    def set_params(self, **params: Any) -> "DomainGeneralizer":
        """Other names than the constructor's are hyper-parameters; `fit` checks them, as is usual in scikit-learn.

        With another algorithm, the former one's hyper-parameters that it does not have are dropped, so that a grid may
        vary both: `[{"algorithm": ["ERM"]}, {"algorithm": ["DAT"], "eps": [0.5, 1.0]}]`.
        """
        arguments = {name: value for name, value in params.items() if name in self._get_param_names()}
        given = {name: value for name, value in params.items() if name not in arguments}
        former = self.algorithm
        super().set_params(**arguments)
        if all(isinstance(name, str) and name in ALGORITHMS for name in (former, self.algorithm)):
            gone = set(ALGORITHMS[former].space) - set(ALGORITHMS[self.algorithm].space)
            self._hparams = {name: value for name, value in self._hparams.items() if name not in gone}
        self._hparams = {**self._hparams, **given}
        return self

    def fit(self, X: Any, y: Any, domains: Any = None) -> "DomainGeneralizer":
        X, y = validate_data(self, X, y, **_form(X))
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        names = np.zeros(len(y), int) if domains is None else column_or_1d(domains)
        check_consistent_length(X, names)
        order = np.argsort(names, kind="stable")
        unique, counts = np.unique(names, return_counts=True)
        data = Environments.from_images(
            torch.from_numpy(np.ascontiguousarray(X[order])),
            torch.from_numpy(labels[order].astype(np.int64)),
            {str(name): int(count) for name, count in zip(unique, counts, strict=True)},
            name="samples",
            classes=[str(name) for name in self.classes_],
        )
        self.model_ = fit(
            data,
            self.algorithm,
            steps=_plain(self.steps),
            evaluate_every=_plain(self.steps),
            network=self.network,
            hparams={name: _plain(value) for name, value in self._hparams.items()},
            held_out=self.held_out,
            average=self.average,
            precision=self.precision,
            device=self.device,
            seed=_seed(self.random_state),
        )
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        likely = self.predict_proba(X).argmax(1)
        return self.classes_[likely]

    def predict_proba(self, X: Any) -> npt.NDArray[np.float32]:
        """Probabilities [n, classes], in the order of `classes_`."""
        check_is_fitted(self)
        return self.model_.predict_proba(validate_data(self, X, reset=False, **_form(X)))


def _form(X: Any) -> dict[str, Any]:
    """Arguments of scikit-learn's validation: images are unchanged, everything else becomes rows of floats."""
    if getattr(X, "ndim", 0) != 4:
        return {"dtype": [np.float64, np.float32]}
    if X.dtype != np.uint8:
        raise ValueError(f"images [n, channels, height, width] must be uint8, not {X.dtype}")
    return {"allow_nd": True, "dtype": None}


def _plain(value: Any) -> Any:
    """A Python number of a numpy one, as grids often hold."""
    return value.item() if isinstance(value, np.generic) else value


def _seed(random_state: Any) -> int:
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
