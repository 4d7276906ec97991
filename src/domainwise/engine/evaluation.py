"""Judging: accuracy and loss on splits of domains, in large batches, one synchronisation for all of them."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm
from domainwise.data.environments import Environments
from domainwise.data.streaming import chunks
from domainwise.engine.execution.capture import first_line, record
from domainwise.protocol.runs import Run

log = logging.getLogger(__name__)

Part = tuple[str, str]
"""(domain, split)."""


def parts_to_judge(run: Run, environments: Environments) -> dict[Part, Tensor]:
    """The rows that some selection rule looks at: `out` of the training domains, `in` and `out` of the others.

    With full curves, `in` of the training domains too. A validation domain is judged whole, as its `in`.
    """
    parts = {}
    for domain in run.domains:
        split = environments.split(domain, run.trial, run.held_out_of(domain))
        for name in ("out",) if domain in run.train_domains and not run.full_curves else ("in", "out"):
            if len(split[name]):
                parts[domain, name] = split[name].to(environments.device)
    return parts


class Evaluator:
    """Judges one training again and again; on a GPU by replaying a graph, recorded the second time.

    Asking and hearing the answer are two things, so that other trainings can keep the GPU busy in between.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        environments: Environments,
        parts: Mapping[Part, Tensor],
        train_domains: Sequence[str],
    ) -> None:
        self.parts, self.measure = parts, partial(scores, algorithm, environments, parts, train_domains)
        self.scores = torch.zeros(len(parts), 2, device=environments.device, dtype=torch.float64)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.capture = environments.device.type == "cuda" and not environments.streamed
        self.warm = False

    def ask(self) -> None:
        """Begins to judge, in eval mode; does not wait for a GPU."""
        if not self.parts:
            return
        if self.capture and self.warm:
            self.capture, self.graph = False, self._recorded()
        if self.graph is None:
            self._measure()
        else:
            self.graph.replay()
        self.warm = True

    def answers(self) -> dict[Part, tuple[float, float]]:
        """(accuracy, mean loss) on each part, as last asked for; nothing where nothing was held out."""
        return dict(zip(self.parts, map(tuple, self.scores.tolist()), strict=True))

    def __call__(self) -> dict[Part, tuple[float, float]]:
        self.ask()
        return self.answers()

    def _measure(self) -> None:
        self.scores.copy_(self.measure())

    def _recorded(self) -> torch.cuda.CUDAGraph | None:
        try:
            return record(self._measure, warm_up=2)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            log.warning("evaluation is not captured, and slower for it: %s", first_line(error))
            return None


def judge(
    algorithm: Algorithm, environments: Environments, parts: Mapping[Part, Tensor], train_domains: Sequence[str]
) -> dict[Part, tuple[float, float]]:
    """(accuracy, mean loss) on each part, in eval mode, once."""
    return Evaluator(algorithm, environments, parts, train_domains)()


@torch.no_grad()
def scores(
    algorithm: Algorithm, environments: Environments, parts: Mapping[Part, Tensor], train_domains: Sequence[str]
) -> Tensor:
    """Accuracy and mean loss of each part, [parts, 2], without waiting for them.

    An algorithm whose predictions depend on their batch sees batches of the training size, each from one domain.
    """
    batch_size = algorithm.hparams["batch_size"] if algorithm.batch_dependent else chunk_size(environments)
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
    return torch.stack(totals)


def chunk_size(environments: Environments) -> int:
    """Images judged at once: on a GPU as many small ones as keep it busy, and large ones as leave room for others."""
    if environments.device.type != "cuda":
        return 500
    return min(max(256, 2**21 // (environments.images[0].numel() // environments.shape[0])), 2048)
