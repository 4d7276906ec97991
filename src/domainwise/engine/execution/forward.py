"""Override the forward pass of feature networks; compilation and data parallelism both do it this way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from domainwise.nets.network import Network

Forward = Callable[..., Tensor]


def feature_networks(algorithm: nn.Module) -> list[nn.Module]:
    """The features of every Network in an algorithm."""
    return [module.features for module in algorithm.modules() if isinstance(module, Network)]


@contextmanager
def override(thing: object, method: str, function: Forward) -> Iterator[None]:
    """Within it, `thing` calls this function in place of a method of its class."""
    setattr(thing, method, function)
    try:
        yield
    finally:
        delattr(thing, method)
