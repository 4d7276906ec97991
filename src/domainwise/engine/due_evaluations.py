"""What is evaluated after which step of a training: the last weights, the averaged ones, and SWAD's validations."""

import math
from dataclasses import dataclass

from torch import Tensor

from domainwise.engine.evaluation import Evaluator, ScoresBySplit, splits_to_evaluate
from domainwise.engine.execution.capture import changing_tensors
from domainwise.engine.execution.ranks import Ranks
from domainwise.engine.session import Session


@dataclass(frozen=True)
class StepScores:
    """The scores after one step, of the weights of the step and, where there are any, of the averaged ones."""

    last: ScoresBySplit
    averaged: ScoresBySplit | None = None

    @property
    def finite(self) -> bool:
        """Whether all losses are finite."""
        scores = (*self.last.values(), *(self.averaged or {}).values())
        return all(math.isfinite(one.loss) for one in scores)


class DueEvaluations:
    """`launch` does not wait for the GPU and `results` does, so that other trainings can use the GPU in between."""

    def __init__(self, session: Session, ranks: Ranks) -> None:
        run, data = session.run, session.environments
        self.session, self.ranks, self.average = session, ranks, session.average
        splits = splits_to_evaluate(run, data)
        held_out = {(domain, name): rows for (domain, name), rows in splits.items() if self._validates(domain, name)}
        self.evaluator, self.validator = (
            Evaluator(
                session.algorithm, data, parts, run.train_domains, capture=session.execution.captures, metrics=metrics
            )
            for parts, metrics in ((splits, True), (held_out, False))
        )
        self._last: Tensor | None = None
        self._averaged: Tensor | None = None
        self._validated: Tensor | None = None

    def _validates(self, domain: str, split: str) -> bool:
        return domain in self.session.run.train_domains and split == "out"

    def launch(self, step: int) -> None:
        """Starts what is due after a step."""
        self._last = self._averaged = self._validated = None
        average = self.average
        if self.session.run.evaluated_at(step):
            self.ranks.broadcast(changing_tensors(self.session.algorithm))
            self._last = self.evaluator.launch()
            if average is not None:
                self.ranks.broadcast(average.tensors())
                if average.evaluated_at(step) and not average.validated_at(step):
                    with average.applied():
                        self._averaged = self.evaluator.launch()
        elif average is not None and average.validated_at(step):
            self._validated = self.validator.launch()

    def results(self, step: int) -> StepScores | None:
        """The scores of the evaluation after a step; None if there was none."""
        average = self.average
        last = None if self._last is None else self.evaluator.results(self._last)
        if average is not None and average.validated_at(step):
            scores = last if self._validated is None else self.validator.results(self._validated)
            losses = [one.loss for split, one in (scores or {}).items() if self._validates(*split)]
            mean = sum(losses) / len(losses)
            average.observe(step, self.ranks.on_rank_zero(lambda: mean))  # ranks may differ in the last bits
            if last is not None and average.evaluated_at(step):
                with average.applied():
                    self._averaged = self.evaluator.launch()
        if last is None:
            return None
        return StepScores(last, None if self._averaged is None else self.evaluator.results(self._averaged))
