"""Networks, as features and classifier."""

from domainwise.nets import resnet as _resnet  # noqa: F401 (registers its networks)
from domainwise.nets import small as _small  # noqa: F401 (registers its networks)
from domainwise.nets.network import NETWORKS, PRETRAINED, Network, build, network

__all__ = ["NETWORKS", "PRETRAINED", "Network", "build", "network"]
