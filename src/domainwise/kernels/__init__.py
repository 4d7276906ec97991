"""Optional accelerated versions of plain operations: see `kernels.registry` for how they are chosen and turned off."""

from domainwise.kernels import augment, convnet, draw, metrics, residual, stem  # noqa: F401 (they register their versions)
from domainwise.kernels.adam import adam
from domainwise.kernels.registry import accelerated, disabled, operation

__all__ = ["accelerated", "adam", "disabled", "operation"]
