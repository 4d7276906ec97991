"""Kernels of our own, where PyTorch's are slow; everywhere else the same in plain PyTorch."""

from domainwise.kernels import draw
from domainwise.kernels.adam import adam
from domainwise.kernels.layers import conv_relu_group_norm

__all__ = ["adam", "conv_relu_group_norm", "draw"]
