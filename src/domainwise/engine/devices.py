"""The device of a training and the precision of its arithmetic."""

import time

import torch

from domainwise.core.errors import UserError, unknown
from domainwise.protocol.runs import PRECISIONS

DEVICES = ("auto", "cpu", "cuda")


def check_device(name: str) -> None:
    """Unknown device names list all valid ones."""
    if name not in DEVICES:
        raise UserError(f"unknown device {name!r}: known: {', '.join(DEVICES)}")


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one, else the CPU."""
    check_device(name)
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device found: use the CPU", argument="device")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def pick_precision(name: str, device: str) -> str:
    """`auto` is tf32 on a GPU and fp32 elsewhere; device "cuda" may be a GPU of another machine."""
    if name == "auto":
        return "tf32" if device == "cuda" or pick_device(device).type == "cuda" else "fp32"
    if name not in PRECISIONS:
        raise unknown("precision", name, ("auto", *PRECISIONS))
    return name


def check_precision(precision: str, device: torch.device) -> None:
    """Raises UserError if the hardware lacks the precision or would only emulate it."""
    if precision == "tf32" and device.type != "cuda":
        raise UserError(f"this {device.type} has no TF32: use fp32 in place of tf32", argument="precision")
    if precision == "bf16" and not _has_bf16(device):
        raise UserError(f"this {device.type} has no bf16 arithmetic: use fp32 in place of bf16", argument="precision")


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512") and torch.cpu._is_avx512_bf16_supported()


def now(device: torch.device) -> float:
    """The time, after the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
