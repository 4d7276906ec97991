"""What tests of kernels share: numbers, comparisons, and where the kernels run (interpreted, if there is no GPU)."""

import os
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from domainwise.engine.execution.isolation import arithmetic
from domainwise.kernels.registry import TRITON

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

needs_triton = pytest.mark.skipif(not TRITON, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
CHECKS = ("test_schema", "test_faketensor")
"""What torch may be told of an operation: shapes, strides and dtypes of its results, and that it changes no input."""
FLOAT32 = 1e-5
"""The error of sums of products in float32."""


def multiplied_bf16(tolerance: float) -> Any:
    """bf16 with its tolerance, for kernels that multiply matrices."""
    marks = pytest.mark.skipif(not GPU, reason="Triton's interpreter cannot multiply matrices of bf16")
    return pytest.param(torch.bfloat16, tolerance, marks=marks)


def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets accelerated versions apply to tensors of a CPU, too."""
    for module in ("adam", "augment", "convnet", "draw", "fold", "metrics"):
        monkeypatch.setattr(import_module(f"domainwise.kernels.{module}"), "on_gpu", lambda _: True)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers that depend on the shape alone, on the device, images in channels_last."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)
    return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else made


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return bool((ours.double() - theirs).abs().max() <= tolerance * theirs.abs().max())


def gradients(function: Any, given: list[Tensor], dy: Tensor, dtype: torch.dtype | None = None) -> list[Tensor]:
    """The value and all gradients, with inputs of this dtype or as they are, without TF32."""
    inputs = [(t if dtype is None else t.to(dtype)).detach().requires_grad_() for t in given]
    with arithmetic("fp32"):
        y = function(*inputs)
        return [y, *torch.autograd.grad(y, inputs, dy.to(y.dtype))]
