"""Optimisers that import no torch._dynamo: torch's to the bit, with its state and hooks."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from domainwise.core.optimizers import LBFGS, SGD, Adam

Kind = Callable[..., Any]
PAIRS: tuple[tuple[Kind, Kind, dict[str, Any]], ...] = (
    (Adam, torch.optim.Adam, {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1, "fused": True}),
    (SGD, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}),
    (LBFGS, torch.optim.LBFGS, {"max_iter": 5, "line_search_fn": "strong_wolfe"}),
)


def weights() -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(4)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in ((3, 5), (7,), (2, 3, 3, 3))]


def steps(optimizer: Any, parameters: list[nn.Parameter], numbers: range) -> None:
    """Down a loss that changes from step to step; in every third the last parameter has no part."""
    for number in numbers:

        def loss(number: int = number) -> Tensor:
            optimizer.zero_grad()
            used = parameters[: 2 if number % 3 == 2 else 3]
            value = torch.stack([((p - i - number).cos() + p.square() / 9).sum() for i, p in enumerate(used)]).sum()
            value.backward()
            return value

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()


@pytest.mark.parametrize(
    ("ours", "theirs", "settings", "grouped"),
    [*((*pair, False) for pair in PAIRS), *((*pair, True) for pair in PAIRS[:2])],
)
def test_they_are_torchs_to_the_bit_and_read_each_others_state(
    ours: Kind, theirs: Kind, settings: dict[str, Any], grouped: bool
) -> None:
    """Six steps, of which the last three follow from the other's state, loaded into a new optimiser."""
    runs = []
    for first, second in ((ours, ours), (theirs, theirs), (ours, theirs), (theirs, ours)):
        parameters = weights()

        def groups(parameters: list[nn.Parameter] = parameters) -> list[Any]:
            halves = ({"params": parameters[:1], "lr": 3e-3, "factor": 0.3}, {"params": parameters[1:]})
            return list(halves) if grouped else list(parameters)

        optimizer = first(groups(), **settings)
        steps(optimizer, parameters, range(3))
        later = second(groups(), **settings)
        later.load_state_dict(optimizer.state_dict())
        steps(later, parameters, range(3, 6))
        runs.append((parameters, later.state_dict()))
    (expected, state), *others = runs
    assert not any(torch.equal(parameter, start) for parameter, start in zip(expected, weights(), strict=True))
    for parameters, found in others:
        assert all(map(torch.equal, expected, parameters))
        assert found["param_groups"] == state["param_groups"]
        assert list(numbers(found["state"])) == list(numbers(state["state"]))


def numbers(value: Any) -> Iterator[Any]:
    """All of a state, as plain numbers."""
    if isinstance(value, Tensor):
        yield from value.flatten().tolist()
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from numbers(part)
    else:
        yield value


def test_hooks_run_before_a_step() -> None:
    """As the clipping of gradients does."""
    parameters = weights()
    optimizer = Adam(parameters, 1e-2)
    seen: list[object] = []
    optimizer.register_step_pre_hook(lambda one, *_: seen.append(one))
    steps(optimizer, parameters, range(2))
    assert seen == [optimizer, optimizer]


@pytest.mark.parametrize(
    "code",
    [
        "import domainwise as dw; dw.train('BackgroundDigits', 'DAT', 'scene1', steps=2, out='runs', device='cpu')",
        "from domainwise.engine.logistic import logistic_regression as fit; import torch\n"
        "fit(torch.randn(40, 3), torch.arange(40) % 2, 2)",
    ],
    ids=["training", "probe"],
)
def test_a_process_that_trains_imports_no_dynamo(code: str, tmp_path: Path) -> None:
    """Which takes a second, at every start and in every worker."""
    script = f"{code}\nimport sys; print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["True", "False"]
