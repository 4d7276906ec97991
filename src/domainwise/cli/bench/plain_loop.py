"""A plain training loop, written the way DomainBed writes it: the baseline of the benchmark.

A DataLoader of single samples per domain, float32 with PyTorch's defaults (on a GPU these allow TF32 in convolutions),
contiguous memory, eager, and the loss read after every step.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from domainwise.data.environments import Environments
from domainwise.nets.network import Network, build

SMALL = 2**28
"""Bytes of images up to which a plain loop normalises them beforehand."""


class _Rows(Dataset[tuple[Tensor, ...]]):
    """Single samples of some rows, normalised on access."""

    def __init__(self, environments: Environments, rows: Tensor) -> None:
        self.environments, self.rows = environments, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        row = self.rows[number]
        return self.environments.normalise(self.environments.images[row]), self.environments.labels[row]


def _samples(environments: Environments, rows: Tensor) -> _Rows | TensorDataset:
    if environments.images.nbytes > SMALL:
        return _Rows(environments, rows)
    return TensorDataset(environments.normalise(environments.images[rows]), environments.labels[rows])


class PlainLoop:
    """ERM on these training domains; the data stays on the host."""

    def __init__(
        self, environments: Environments, domains: Sequence[str], network: str, batch_size: int, device: torch.device
    ) -> None:
        self.environments, self.device = environments, device
        self.network = _contiguous(build(network, environments.shape, len(environments.classes))).to(device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        self.loaders: list[Iterator[list[Tensor]]] = []
        for domain in domains:
            data = _samples(environments, environments.split(domain, 0)["in"])
            sampler = RandomSampler(data, replacement=True, num_samples=10**9)
            self.loaders.append(iter(self._loader(data, batch_size, sampler)))

    def _loader(
        self, data: _Rows | TensorDataset, batch_size: int, sampler: RandomSampler | None = None
    ) -> DataLoader[Any]:
        """With eight worker processes for a GPU, as in DomainBed; on a CPU none."""
        return DataLoader(data, batch_size, sampler=sampler, num_workers=8 if self.device.type == "cuda" else 0)

    def step(self) -> None:
        batches = [next(loader) for loader in self.loaders]
        x = torch.cat([x.to(self.device) for x, _ in batches])
        y = torch.cat([y.to(self.device) for _, y in batches])
        loss = F.cross_entropy(self.network(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        loss.item()

    def evaluate(self, splits: Sequence[Tensor]) -> None:
        """Computes the accuracy on the rows of each split, in batches of 64, with a synchronisation after each."""
        self.network.eval()
        with torch.no_grad():
            for rows in splits:
                correct = 0
                for x, y in self._loader(_samples(self.environments, rows), batch_size=64):
                    correct += int((self.network(x.to(self.device)).argmax(1) == y.to(self.device)).sum().item())
        self.network.train()


def _contiguous(network: Network) -> Network:
    """The network in the default memory format."""
    network.represent = lambda x: network.dropout(network.features(x))  # type: ignore[method-assign]
    return network
