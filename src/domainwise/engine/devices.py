"""Where a training runs and how precisely it computes."""

import torch

from domainwise.core.errors import UserError, unknown
from domainwise.protocol.runs import PRECISIONS

DEVICES = ("auto", "cpu", "cuda")


def check_device(name: str) -> None:
    """All names are told: to who asks for a gpu, the nearest is cpu."""
    if name not in DEVICES:
        raise UserError(f"unknown device {name!r}: known: {', '.join(DEVICES)}")


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    check_device(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no CUDA device found; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def pick_precision(name: str, device: str) -> str:
    """`auto` is tf32 on a GPU and fp32 elsewhere; a GPU asked for by name may be on another machine."""
    if name == "auto":
        return "tf32" if device == "cuda" or pick_device(device).type == "cuda" else "fp32"
    if name not in PRECISIONS:
        raise unknown("precision", name, ("auto", *PRECISIONS))
    return name


def check_precision(precision: str, device: torch.device) -> None:
    """A precision is refused where the hardware lacks it or would only emulate it."""
    if precision == "tf32" and device.type != "cuda":
        raise UserError(f"--precision tf32: this {device.type} has no TF32; use --precision fp32")
    if precision == "bf16" and not _has_bf16(device):
        raise UserError(f"--precision bf16: this {device.type} has no bf16 arithmetic; use --precision fp32")


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512") and torch.cpu._is_avx512_bf16_supported()
