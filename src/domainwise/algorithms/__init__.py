"""The algorithms: one decorated class per method under its equation, grouped by family."""

from typing import TYPE_CHECKING

from domainwise.core.registry import Registry

if TYPE_CHECKING:
    from domainwise.algorithms.base import Algorithm

FAMILIES = (
    "risk",
    "adversarial",
    "transport",
    "match",
    "mix",
    "meta",
    "style",
    "bottleneck",
    "gradients",
    "contrast",
    "causal",
    "transfer",
    "discriminator",
    "sharpness",
    "finetuning",
)

ALGORITHMS: "Registry[type[Algorithm]]" = Registry(
    "algorithm", tuple(f"{__name__}.{family}" for family in FAMILIES), decorator="algorithm"
)
