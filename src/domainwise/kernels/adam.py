"""Adam over one flat tensor: torch's own kernel gives a small network's few tensors too few processors."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from domainwise.core.flat_layout import FlatLayout
from domainwise.core.optimizers import Adam
from domainwise.kernels.registry import accelerates, on_gpu, operation


@operation("adam")
def adam(
    parameters: Sequence[nn.Parameter],
    lr: float,
    betas: tuple[float, float],
    weight_decay: float,
    factors: Sequence[float] | None = None,
) -> Adam:
    """Adam, which may be captured on a GPU. `factors` multiply the learning rate, one for each parameter."""
    capturable = all(parameter.is_cuda for parameter in parameters)
    groups: list[Any] = list(parameters)
    if factors is not None:
        by_factor: dict[float, list[nn.Parameter]] = {}
        for parameter, factor in zip(parameters, factors, strict=True):
            by_factor.setdefault(factor, []).append(parameter)
        groups = [{"params": members, "lr": factor * lr, "factor": factor} for factor, members in by_factor.items()]
    return Adam(groups, lr, betas, weight_decay=weight_decay, fused=True, capturable=capturable)


def _applies(
    parameters: Sequence[nn.Parameter],
    lr: float,  # noqa: ARG001 (the arguments of adam)
    betas: object,  # noqa: ARG001
    weight_decay: float,  # noqa: ARG001
    factors: object = None,
) -> bool:
    return factors is None and all(on_gpu(one) and one.dtype == torch.float32 for one in parameters)


@accelerates("adam", when=_applies)
class FlatAdam(Adam):
    """torch's Adam for float32 parameters on a GPU, which become views of one tensor, as do its moments.

    Its state is that of torch's, parameter by parameter; a loaded state is copied into place. A parameter without a
    gradient has one of zero.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        factors: None = None,  # noqa: ARG002 (it has one learning rate)
    ) -> None:
        super().__init__(parameters, lr=lr, betas=betas, weight_decay=weight_decay, fused=True, capturable=True)
        self.parameters: list[nn.Parameter] = self.param_groups[0]["params"]
        self.layout = FlatLayout(self.parameters)
        self.flat = self.layout.joined(parameter.detach() for parameter in self.parameters)
        self.moments = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.count = self.flat.new_zeros(())
        for parameter, view in zip(self.parameters, self.layout.views(self.flat), strict=True):
            parameter.data = view
        self._use_flat_state()

    def _use_flat_state(self) -> None:
        """Every parameter's state as views of the flat one, with the values it has."""
        firsts, seconds = map(self.layout.views, self.moments)
        for parameter, first, second in zip(self.parameters, firsts, seconds, strict=True):
            state = {"step": self.count, "exp_avg": first, "exp_avg_sq": second}
            for name, value in self.state[parameter].items():
                state[name].copy_(value)
            self.state[parameter] = state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._use_flat_state()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        from domainwise.kernels import adam_triton

        assert closure is None, "a step is one step down gradients that are there"
        group = self.param_groups[0]
        gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters)
        self.count += 1
        settings = (group["lr"], group["betas"], group["eps"], group["weight_decay"])
        adam_triton.update(self.flat, self.layout.joined(gradients), self.moments, self.count, *settings)
