"""Which runs of a folder have not come to a good end, in words: a number is not reported without saying so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from domainwise.core.phrasing import counted
from domainwise.protocol.records import Status
from domainwise.protocol.runs import Run

COUNTED = ("done", "diverged")
"""How runs end whose evaluations count."""
NAMES = 3
"""How many runs are named."""


@dataclass(frozen=True)
class Completeness:
    """The runs that are not finished, failed or diverged, and whether the first two are counted all the same."""

    unfinished: tuple[str, ...]
    failed: tuple[str, ...]
    diverged: tuple[str, ...]
    partial: bool
    named: bool = True
    """Whether identities of runs are the names of their folders."""

    @classmethod
    def of(
        cls, runs: Iterable[Run], statuses: Mapping[str, Status], partial: bool, *, named: bool = True
    ) -> "Completeness":
        by_state: dict[str, list[str]] = {"": [], "failed": [], "diverged": [], "done": []}
        for run in runs:
            status = statuses.get(run.id)
            by_state["" if status is None else status.status].append(run.id)
        unfinished, failed, diverged = (tuple(by_state[state]) for state in ("", "failed", "diverged"))
        return cls(unfinished, failed, diverged, partial, named)

    @property
    def incomplete(self) -> int:
        """How many runs failed or are not finished."""
        return len(self.unfinished) + len(self.failed)

    @property
    def is_partial(self) -> bool:
        """Whether runs are counted that did not come to their end."""
        return self.partial and self.incomplete > 0

    @property
    def counts(self) -> str:
        """How many runs are in which state."""
        states = {"not finished": self.unfinished, "failed": self.failed, "diverged": self.diverged}
        return ", ".join(f"{len(ids)} {state}" for state, ids in states.items() if ids)

    @property
    def sentences(self) -> list[str]:
        """None if all runs are done."""
        sentences = []
        if self.incomplete:
            states = {"not finished": self.unfinished, "failed": self.failed}
            parts = [f"{counted(len(ids), 'run')} {state}{self._names(ids)}" for state, ids in states.items() if ids]
            sentences.append(f"{'partial, with' if self.partial else 'left out:'} {', '.join(parts)}")
        if self.diverged:
            verb = "counts" if len(self.diverged) == 1 else "count"
            names = self._names(self.diverged)
            sentences.append(f"{counted(len(self.diverged), 'run')} diverged{names} and {verb} up to there")
        return sentences

    def _names(self, ids: tuple[str, ...]) -> str:
        more = f" and {len(ids) - NAMES} more" if len(ids) > NAMES else ""
        return f" ({', '.join(ids[:NAMES])}{more})" if self.named else ""

    def __str__(self) -> str:
        return "; ".join(self.sentences)
