"""Methods of the domains' risks, beyond those of the first references, in float64; see tests/support/references.py."""

import pytest
from torch import Tensor

from domainwise.algorithms.base import Algorithm
from references import descending, risk, same_course


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sd(decay: float) -> None:
    def sd(twin: Algorithm, x: Tensor, y: Tensor, number: int) -> Tensor:
        total = 0.0
        for e in range(len(x)):
            logits = twin.network(x[e])
            squares = sum(one @ one for one in logits) / logits.numel()
            total = total + (risk(lambda z: z, logits, y[e]) + 0.6 * squares) / len(x)
        return total

    same_course("SD", descending(sd), penalty=0.6, weight_decay=decay)
