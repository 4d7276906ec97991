"""How often every training image is drawn: by its weight, its class's, and the size of its class or group."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from domainwise.core.errors import UserError
from domainwise.data.environments import Environments
from domainwise.protocol.balance import ClassWeights

Floats = npt.NDArray[np.float64]


def chances(
    environments: Environments, rows: Sequence[Tensor], balance: str = "", class_weights: ClassWeights = ()
) -> list[Tensor] | None:
    """The probability of each of the rows of every domain, as in `protocol.balance`; None where all are equal."""
    if balance == "group" and environments.groups is None:
        raise UserError(f"{environments.name} has no groups to balance: name a column, or bursts", argument="balance")
    if not balance and not class_weights and environments.weights is None:
        return None
    of_class = np.ones(len(environments.classes))
    for name, weight in class_weights:
        of_class[environments.classes.index(name)] = weight
    return [torch.from_numpy(_of_domain(environments, part.cpu(), balance, of_class)) for part in rows]


def _of_domain(environments: Environments, rows: Tensor, balance: str, of_class: Floats) -> Floats:
    """The cells of a domain have equal sums, but for the classes' weights."""
    labels = environments.labels[rows.to(environments.labels.device)].cpu().numpy()
    own = np.ones(len(rows)) if environments.weights is None else environments.weights[rows].numpy()
    cells = np.zeros(len(rows), np.int64)
    if balance == "class":
        cells = labels
    elif balance == "group" and environments.groups is not None:
        cells = np.unique(environments.groups[rows].numpy(), return_inverse=True)[1]
    totals = np.bincount(cells, own)[cells]
    result = np.divide(own * of_class[labels], totals, out=np.zeros(len(rows)), where=totals > 0)
    if not result.sum() > 0:
        raise UserError(
            f"{environments.name}: all {len(rows)} training images of a domain have weight 0: give some more"
        )
    return np.asarray(result / result.sum())
