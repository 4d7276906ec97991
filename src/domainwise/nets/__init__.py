"""Networks, as features and classifier."""

from domainwise.nets import small as _small  # noqa: F401 (registers its networks)
from domainwise.nets.network import NETWORKS, Network, build, network

__all__ = ["NETWORKS", "Network", "build", "network"]
