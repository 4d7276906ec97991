"""Where a training runs and how precisely it computes."""

import torch

from domainwise.errors import UserError, unknown

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("fp32", "bf16")


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no CUDA device found; use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def check_precision(precision: str, device: torch.device) -> None:
    """bf16 is refused where the hardware would only emulate it."""
    if precision == "bf16" and not _has_bf16(device):
        raise UserError(f"--precision bf16: this {device.type} has no bf16 arithmetic; use --precision fp32")


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512") and torch.cpu._is_avx512_bf16_supported()
