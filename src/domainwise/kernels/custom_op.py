"""What the custom operators have in common: definition, memory, and gradients that are differentiated again."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, library
from torch._library.custom_ops import CustomOpDef


def custom_op(compute: str | Callable[..., Any]) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Defines the operator torch.ops.domainwise.NAME by a function NAME that makes empty results of the right shapes.

    That function gives the operator its signature, and the compiler its results ("fake" version). `compute` computes
    them: a function, or "module.function" of this package, which is imported at the first call, since it needs Triton.
    """

    def define(fake: Callable[..., Any]) -> CustomOpDef:
        def call(*args: Any) -> Any:
            if callable(compute):
                return compute(*args)
            module, function = compute.split(".")
            return getattr(import_module(f"domainwise.kernels.{module}"), function)(*args)

        schema = library.infer_schema(fake, mutates_args=())
        operator = library.custom_op(f"domainwise::{fake.__name__}", call, mutates_args=(), schema=schema)
        operator.register_fake(fake)
        return operator

    return define


def empty(x: Tensor, channels: int, height: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for as many samples as x has, on its device, of its dtype or of this one, in channels_last."""
    shape = (len(x), channels, height, width)
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=torch.channels_last)


def channels_last(x: Tensor) -> Tensor:
    """In channels_last, as kernels read it; called before an operator, so that compiled code writes gradients so."""
    return x.contiguous(memory_format=torch.channels_last)


def plain_gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor], dy: Tensor | tuple[Tensor, ...]
) -> list[Tensor | None]:
    """Gradients of a function in plain PyTorch, which can be differentiated again; None where none is required."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    gradients = iter(torch.autograd.grad(function(*inputs), wanted, dy, create_graph=True, allow_unused=True))
    return [next(gradients) if tensor.requires_grad else None for tensor in inputs]
