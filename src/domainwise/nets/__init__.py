"""The networks: plain PyTorch modules that map inputs to features, and the classifier on top."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from domainwise.core.registry import Registry
from domainwise.protocol.network_names import PREFIXES, is_hub

if TYPE_CHECKING:
    from torch import nn

NETWORKS: "Registry[Callable[[tuple[int, ...]], nn.Module]]" = Registry(
    "network",
    (f"{__name__}.resnet", f"{__name__}.small"),
    decorator="network",
    families=dict.fromkeys(PREFIXES, f"{__name__}.backbones"),
)


def pretrained_weights(network: str) -> str | None:
    """The name of the published weights that a network starts from (see `nets.weights`); None for a random start.

    Those of a hub's backbone go by its own name.
    """
    return network if is_hub(network) else NETWORKS.options(network).get("weights")
