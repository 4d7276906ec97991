"""An algorithm of one's own: mean risk plus a weight times the worst domain's risk.

domainwise --plugin THIS_FILE train --dataset BackgroundDigits --algorithm WorstDomain --test-domain scene1
"""

from torch import Tensor

import domainwise as dw


@dw.algorithm
class WorstDomain(dw.ERM):
    """Mind the worst: mean_e R_e + weight max_e R_e.

    Paper: none yet.
    Note: as smooth as the risks themselves, except where two domains change places.
    Try it: as a starting point.
    """

    needs_domains = 2
    space = dw.ERM.space | {"weight": dw.LogUniform(-1, 1, default=1.0)}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """x [E, B, ...], y [E, B]: B samples of each of E training domains."""
        risks = self.risks(x, y)  # [E]
        return risks.mean() + self.hparams["weight"] * risks.max()
