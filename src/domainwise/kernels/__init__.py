"""Kernels of our own, where PyTorch's are slow; everywhere else the same in plain PyTorch."""

from domainwise.kernels import draw
from domainwise.kernels.adam import adam
from domainwise.kernels.convolution import conv_norm_relu
from domainwise.kernels.layers import conv_relu_group_norm, watched, whole
from domainwise.kernels.residual import residual_blocks
from domainwise.kernels.stem import conv_norm_relu_pool

__all__ = [
    "adam",
    "conv_norm_relu",
    "conv_norm_relu_pool",
    "conv_relu_group_norm",
    "draw",
    "residual_blocks",
    "watched",
    "whole",
]
