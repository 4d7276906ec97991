"""The machine of a benchmark: its description, clock, matrix rate and memory."""

import platform
import resource
import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import torch

from domainwise.core.provenance import device_name, package_version
from domainwise.engine.devices import now
from domainwise.engine.execution.isolation import arithmetic


def describe(device: torch.device) -> dict[str, Any]:
    """The device, the relevant versions, and the date."""
    about = {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }
    if device.type == "cuda":
        about |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "triton": package_version("triton"),
        }
    return about


def seconds_each(work: Callable[[], object], device: torch.device, budget: float) -> float:
    """Seconds per call after a warm-up call: the median of up to five rounds that fill the budget."""
    began = now(device)
    work()
    repeats = max(1, int(budget / 5 / max(now(device) - began, 1e-9)))
    rounds: list[float] = []
    while len(rounds) < 5 and (not rounds or repeats * sum(rounds) < budget):
        began = now(device)
        for _ in range(repeats):
            work()
        rounds.append((now(device) - began) / repeats)
    return statistics.median(rounds)


def matrix_rate(device: torch.device, precision: str, budget: float) -> float:
    """Floating point operations per second in products of large matrices in this precision."""
    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.randn(size, size, device=device, dtype=dtype)
    with arithmetic(precision):
        return 2 * size**3 / seconds_each(lambda: a @ a, device, budget)


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: allocated on the GPU since the last reset, or used by this process so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
