"""Which runs of a folder have not come to a good end, or are missing: a number is not reported without saying so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from domainwise.core.phrasing import counted
from domainwise.protocol.records import Status
from domainwise.protocol.runs import Run

COUNTED = ("done", "diverged")
"""How runs end whose evaluations count."""
NAMES = 3
"""How many runs, or algorithms of missing ones, are named."""


@dataclass(frozen=True)
class Completeness:
    """The runs that are not finished, failed or diverged, and whether the first two are counted all the same."""

    unfinished: tuple[str, ...]
    failed: tuple[str, ...]
    diverged: tuple[str, ...]
    missing: tuple[str, ...]
    """The algorithm of each planned run that is not there."""
    partial: bool
    named: bool = True
    """Whether identities of runs are the names of their folders."""

    @classmethod
    def of(
        cls,
        runs: Iterable[Run],
        statuses: Mapping[str, Status],
        missing: Iterable[Run],
        partial: bool,
        *,
        named: bool = True,
    ) -> "Completeness":
        """Of these runs, some of which may be among the planned ones that are missing."""
        by_state: dict[str, list[str]] = {"": [], "failed": [], "diverged": [], "done": []}
        planned, absent = {run.id for run in missing}, []
        for run in runs:
            if run.id in planned:
                absent.append(run.algorithm)
                continue
            status = statuses.get(run.id)
            by_state["" if status is None else status.status].append(run.id)
        unfinished, failed, diverged = (tuple(by_state[state]) for state in ("", "failed", "diverged"))
        return cls(unfinished, failed, diverged, tuple(absent), partial, named)

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
        states = {
            "not finished": self.unfinished,
            "failed": self.failed,
            "diverged": self.diverged,
            "missing": self.missing,
        }
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
        if self.missing:
            algorithms = tuple(dict.fromkeys(self.missing))
            sentences.append(f"{counted(len(self.missing), 'planned run')} missing{self._names(algorithms)}")
        return sentences

    def _names(self, names: tuple[str, ...]) -> str:
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        return f" ({', '.join(names[:NAMES])}{more})" if self.named else ""

    def __str__(self) -> str:
        return "; ".join(self.sentences)
