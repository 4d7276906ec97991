"""Kernels of our own, where PyTorch's are slow; everywhere else the same in plain PyTorch."""

from domainwise.kernels.group_norm import relu_group_norm, relu_group_norm_mean

__all__ = ["relu_group_norm", "relu_group_norm_mean"]
