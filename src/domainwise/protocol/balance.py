"""How often each training image of a domain is drawn: part of the recipe of a training.

    p(i | e)  =  w_i v_{y_i} / n_e(k_i),  scaled to sum 1 in every domain e

w_i is the image's own weight (a column of a table, else 1), v_c that of its class. n_e(k) is the sum of the w of those
images of domain e in the cell k of i: one per class (balance "class") or per group ("group"); else there is one cell.

A loss whose images are drawn so has the mean that one weighted by the same numbers has. So every method can be
balanced, those with an inner maximisation too, and none needs to know it. Domains are always balanced: a batch holds
equally many images of each.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from domainwise.core.errors import UserError, unknown

if TYPE_CHECKING:
    from domainwise.protocol.options import TrainingOptions

UNCHANGED = ("none", "domain")
"""Names of what every training does."""
BALANCES = ("class", "group", *UNCHANGED)
LARGEST = 1e6
"""Weight of a class."""

ClassWeights = tuple[tuple[str, float], ...]
"""(class, weight), sorted; other classes have weight 1."""


def check_balance(options: "TrainingOptions", classes: Sequence[str]) -> None:
    """Raises UserError for unknown names, and for weights that are no positive numbers."""
    if options.balance and options.balance not in BALANCES:
        raise unknown("balance", options.balance, BALANCES)
    for name, weight in options.class_weights:
        if name not in classes:
            raise unknown("class", name, classes)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight <= LARGEST:
            raise UserError(
                f"the weight of class {name} must be a number above 0 and at most {LARGEST:,.0f}, not {weight}",
                argument="class_weight",
            )


def as_pairs(weights: ClassWeights) -> list[str]:
    """["deer=1", "fox=5"], as a user writes them."""
    return [f"{name}={weight:.15g}" for name, weight in weights]
