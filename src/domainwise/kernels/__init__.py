"""Kernels of our own, where PyTorch's are slow; everywhere else the same in plain PyTorch."""

from domainwise.kernels.group_norm import relu_group_norm

__all__ = ["relu_group_norm"]
