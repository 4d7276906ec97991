"""Plain operations, their accelerated versions, and the switch between them.

A plain operation is an ordinary PyTorch function or method under a name. It is the definition, and runs everywhere:

    @operation("resnet_stem")
    def stem(x, conv, norm):
        return F.max_pool2d(F.relu(norm(conv(x))), 3, stride=2, padding=1)

A module of this package registers a faster version under the same name, with the condition under which it applies:

    @accelerates("resnet_stem", when=lambda x, conv, norm: foldable("resnet_stem", x, conv, norm))
    def fused_stem(x, conv, norm): ...

All accelerated versions need Triton and a GPU. `DOMAINWISE_KERNELS=0` turns all of them off, for a process and those
it starts; `with kernels.disabled():` does so for some lines. A hook on a module inside an operation makes the plain
version compute it, because no other calls the module; the logger says so once.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from typing import Any, NamedTuple, ParamSpec, TypeVar

from torch import Tensor, nn

log = logging.getLogger(__name__)

TRITON = find_spec("triton") is not None
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Version(NamedTuple):
    """An accelerated version of an operation, and whether it applies to given arguments."""

    compute: Callable[..., Any]
    applies: Callable[..., bool]


VERSIONS: dict[str, Version] = {}
"""The accelerated version of each operation that has one."""

_enabled = os.environ.get("DOMAINWISE_KERNELS", "1") != "0"
_reported: set[str] = set()


@contextmanager
def disabled() -> Iterator[None]:
    """Within it, every operation is computed by its plain version, in all threads of this process."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def operation(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Names a plain PyTorch function, in whose place an accelerated version may compute."""

    def decorate(plain: Callable[P, R]) -> Callable[P, R]:
        @wraps(plain)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return (accelerated(name, *args, **kwargs) or plain)(*args, **kwargs)

        return call

    return decorate


def accelerates(name: str, *, when: Callable[..., bool]) -> Callable[[F], F]:
    """Registers the accelerated version of an operation, for the arguments for which `when` holds."""

    def register(version: F) -> F:
        VERSIONS[name] = Version(version, when)
        return version

    return register


def accelerated(name: str, *args: Any, **kwargs: Any) -> Callable[..., Any] | None:
    """The accelerated version that computes this operation of these arguments; None if the plain one does."""
    if not _enabled or name not in VERSIONS:
        return None
    version = VERSIONS[name]
    return version.compute if version.applies(*args, **kwargs) else None


def on_gpu(x: Tensor) -> bool:
    """Whether Triton can compute with this tensor."""
    return TRITON and x.is_cuda


def hooked(name: str, modules: Iterable[nn.Module]) -> bool:
    """Whether one of these modules has a hook. The first time, the logger says that operation `name` is plain now."""
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            if name not in _reported:
                _reported.add(name)
                kind = type(module).__name__
                log.info("%s has a hook: plain PyTorch computes %s, as long as it is there", kind, name)
            return True
    return False
