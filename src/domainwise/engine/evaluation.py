"""Evaluation: accuracy and loss on splits of domains, in large batches, with one synchronisation for all of them."""

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

Split = tuple[str, str]
"""(domain, "in" or "out")."""
Scores = dict[Split, tuple[float, float]]
"""(accuracy, mean loss) on each split."""


def splits_to_evaluate(run: Run, environments: Environments) -> dict[Split, Tensor]:
    """The rows that some selection rule uses: `out` of the training domains, `in` and `out` of the others.

    With full curves, `in` of the training domains too. All of a validation domain is evaluated, as its `in`.
    """
    splits = {}
    for domain in run.domains:
        rows = environments.split(domain, run.trial, run.held_out_of(domain))
        for name in ("out",) if domain in run.train_domains and not run.full_curves else ("in", "out"):
            if len(rows[name]):
                splits[domain, name] = rows[name].to(environments.device)
    return splits


class Evaluator:
    """Evaluates one training repeatedly; on a GPU by replaying a CUDA graph, recorded the second time.

    `launch` does not wait for the GPU and `results` does, so that other trainings can use the GPU in between.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        environments: Environments,
        splits: Mapping[Split, Tensor],
        train_domains: Sequence[str],
        *,
        capture: bool = True,
    ) -> None:
        self.splits, self.measure = splits, partial(scores, algorithm, environments, splits, train_domains)
        self.scores = torch.zeros(len(splits), 2, device=environments.device, dtype=torch.float64)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.capture = capture and environments.device.type == "cuda" and not environments.streamed
        self.warm = False

    def launch(self) -> Tensor:
        """Starts an evaluation in eval mode; returns the tensor that will hold its scores."""
        if not self.splits:
            return self.scores
        if self.capture and self.warm:
            self.capture, self.graph = False, self._record()
        if self.graph is None:
            self._measure()
        else:
            self.graph.replay()
        self.warm = True
        return self.scores.clone()

    def results(self, scores: Tensor) -> Scores:
        """(accuracy, mean loss) on each split by an evaluation that was launched; empty if nothing was held out."""
        return dict(zip(self.splits, map(tuple, scores.tolist()), strict=True))

    def __call__(self) -> Scores:
        return self.results(self.launch())

    def _measure(self) -> None:
        self.scores.copy_(self.measure())

    def _record(self) -> torch.cuda.CUDAGraph | None:
        try:
            return record(self._measure, warm_up=2)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            log.warning("evaluation is not captured, and slower for it: %s", first_line(error))
            return None


def evaluate(
    algorithm: Algorithm, environments: Environments, splits: Mapping[Split, Tensor], train_domains: Sequence[str]
) -> Scores:
    """(accuracy, mean loss) on each split, in eval mode, once."""
    return Evaluator(algorithm, environments, splits, train_domains)()


@torch.no_grad()
def scores(
    algorithm: Algorithm, environments: Environments, splits: Mapping[Split, Tensor], train_domains: Sequence[str]
) -> Tensor:
    """Accuracy and mean loss on each split, [splits, 2], without waiting for the device.

    An algorithm whose predictions depend on their batch sees batches of the training size, each from one domain.
    """
    batch_size = algorithm.hparams["batch_size"] if algorithm.batch_dependent else chunk_size(environments)
    algorithm.eval()
    totals = []
    for (domain, _), rows in splits.items():
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
    """Images per batch: on a GPU enough small ones to keep it busy, and few enough large ones to leave memory."""
    if environments.device.type != "cuda":
        return 500
    return min(max(256, 2**21 // (environments.images[0].numel() // environments.shape[0])), 2048)
