"""Judging: accuracy and loss on splits of domains, in large batches, one synchronisation for all of them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import Algorithm
from domainwise.data import Environments
from domainwise.data.streaming import chunks
from domainwise.runs import Run

Part = tuple[str, str]
"""(domain, split)."""


def parts_to_judge(run: Run, environments: Environments) -> dict[Part, Tensor]:
    """The rows that some selection rule looks at: `out` of the training domains, `in` and `out` of the others.

    With full curves, `in` of the training domains too. A validation domain is judged whole, as its `in`.
    """
    parts = {}
    for domain in (*run.train_domains, *run.validation_domains, *run.test_domains):
        held_out = 0.0 if domain in run.validation_domains else run.held_out
        split = environments.split(domain, run.trial, held_out)
        for name in ("out",) if domain in run.train_domains and not run.full_curves else ("in", "out"):
            if len(split[name]):
                parts[domain, name] = split[name].to(environments.device)
    return parts


@torch.no_grad()
def judge(
    algorithm: Algorithm,
    environments: Environments,
    parts: Mapping[Part, Tensor],
    train_domains: Sequence[str],
    batch_size: int = 500,
) -> dict[Part, tuple[float, float]]:
    """(accuracy, mean loss) on each part, in eval mode.

    An algorithm whose predictions depend on their batch sees batches of the training size, each from one domain.
    """
    if algorithm.predicts_in_groups:
        batch_size = algorithm.hparams["batch_size"]
    algorithm.eval()
    totals = []
    for (domain, _), rows in parts.items():
        number = train_domains.index(domain) if domain in train_domains else None
        total = torch.zeros(2, device=rows.device, dtype=torch.float64)
        for images, y in chunks(environments, rows, batch_size):
            logits = algorithm.predict(environments.normalise(images), number)
            correct = (logits.argmax(1) == y).sum()
            total += torch.stack([correct, F.cross_entropy(logits, y, reduction="sum")])
        totals.append(total / len(rows))
    algorithm.train()
    values = torch.stack(totals).tolist() if totals else []
    return {part: (accuracy, loss) for part, (accuracy, loss) in zip(parts, values, strict=True)}
