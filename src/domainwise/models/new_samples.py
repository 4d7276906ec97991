"""Samples of labelled data that a model was not trained on, by their fingerprints."""

import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.data.fingerprints import fingerprints
from domainwise.models.model import Model


def new_samples(model: Model, data: Environments) -> dict[str, Tensor]:
    """Their rows by domain, without domains that have none; data that the model cannot read is a UserError."""
    if model.trained_on is None:
        raise UserError("this model keeps no fingerprints of its training samples: train it anew, or use a sweep")
    if data.shape != model.card.shape or set(data.classes) - set(model.classes):
        raise UserError(f"{data.name} has other classes or inputs of another shape than the model", argument="data")
    rows_by_domain = {}
    for domain in data.domains:
        rows = data.rows(domain)
        new = rows[~torch.isin(fingerprints(data.images[rows]), model.trained_on)]
        if len(new):
            rows_by_domain[domain] = new
    if not rows_by_domain:
        raise UserError(f"{data.name} holds only samples that the model was trained on", argument="data")
    return rows_by_domain


def labels_of(model: Model, data: Environments, rows: Tensor) -> Tensor:
    """The numbers of the model's classes."""
    numbers = torch.tensor([model.classes.index(name) for name in data.classes])
    return numbers[data.labels[rows].cpu()]
