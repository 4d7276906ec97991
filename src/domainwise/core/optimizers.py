"""torch's optimisers without their wrappers for torch.compile, whose first call imports torch._dynamo.

That import takes a second of every process that trains, and nothing here compiles an optimiser.
"""

from inspect import unwrap
from typing import TypeVar

import torch

C = TypeVar("C", bound=type[torch.optim.Optimizer])
WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def unwrapped(cls: C) -> C:
    """Decorator: an optimiser with torch's methods as they are beneath their wrappers."""
    for name in WRAPPED:
        setattr(cls, name, unwrap(getattr(cls, name)))
    cls.step = torch.no_grad()(unwrap(cls.step))  # type: ignore[method-assign]
    return cls


@unwrapped
class Adam(torch.optim.Adam):
    """torch's Adam."""


@unwrapped
class LBFGS(torch.optim.LBFGS):
    """torch's L-BFGS."""


@unwrapped
class SGD(torch.optim.SGD):
    """torch's gradient descent."""
