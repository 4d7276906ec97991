"""Tables and sentences of pages, written from published records: `python tools/generated_docs.py docs/*.md`.

A page marks a place for them as `<!-- results: WORDS -->...<!-- /results -->`, around a block of its own;
the text between is replaced by the answer to the words from the folder `results`, or by "not run".
"""

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from demo_tables import robustness, validation
from domainwise.core import files
from domainwise.core.errors import unknown
from domainwise.core.table import NOT_RUN
from evidence_tables import attacks, audit, bench, figure, memorised, paper, penalties, verdicts
from guide_tables import calibration, costs, metric_costs, sentence, serving, speed
from headline_tables import control, domainbed, effects, headline
from published_results import Library
from result_tables import across, by_draws, compare, leaderboard, made, over, summary, table

PLACE = re.compile(r"<!-- results: (?P<words>.*?) -->.*?<!-- /results -->", re.DOTALL)
CONDITION = re.compile(r"[a-z]+=")
BREAK_IN_NUMBER = re.compile(r"(?<=\d) (?=[±x])|(?<=[±x]) (?=\d)|(?<=<) (?=\d)")
NO_BREAK = "\N{NO-BREAK SPACE}"


def _named(*functions: Callable[..., str]) -> dict[str, Callable[..., str]]:
    return {function.__name__: function for function in functions}


OF_ONE_EXPERIMENT: Mapping[str, Callable[..., str]] = _named(
    *(table, compare, over, by_draws, leaderboard, made, paper, audit, memorised, penalties, figure, sentence),
    *(validation, robustness, headline, domainbed),
)
OF_SEVERAL: Mapping[str, Callable[..., str]] = _named(across, summary, verdicts, effects)
OF_BENCHMARKS: Mapping[str, Callable[..., str]] = _named(
    bench, attacks, speed, costs, serving, calibration, metric_costs, control
)


def answer(root: Path, words: str, library: Library | None = None) -> str:
    """The text of a marked place, e.g. "compare backgrounds training-domain DAT WRM": function, experiment, arguments.

    A name with spaces is put in quotes. Conditions are words with "=": "until=5000", as if runs had ended after this
    step, "draws=4", as if no more had been drawn, "against=DAT" in place of ERM.
    """
    question, *rest = shlex.split(words)
    library = library or Library(root)
    conditions = dict(word.split("=", 1) for word in rest if CONDITION.match(word))
    rest = [word for word in rest if not CONDITION.match(word)]
    if question in OF_BENCHMARKS:
        return OF_BENCHMARKS[question](root, *rest, **conditions)
    if question in OF_SEVERAL:
        return OF_SEVERAL[question](library, *rest, **conditions)
    if question not in OF_ONE_EXPERIMENT:
        raise unknown("question to results", question, [*OF_ONE_EXPERIMENT, *OF_SEVERAL, *OF_BENCHMARKS])
    results = library(rest[0])
    return OF_ONE_EXPERIMENT[question](results, *rest[1:], **conditions) if results.there else NOT_RUN


def filled(text: str, root: Path) -> str:
    """A page with all its places filled."""
    library = Library(root)

    def fill(place: re.Match[str]) -> str:
        text = _unbroken(answer(root, place["words"], library))
        return f"<!-- results: {place['words']} -->\n\n{text}\n\n<!-- /results -->"

    return PLACE.sub(fill, text)


def _unbroken(text: str) -> str:
    """With "85.6 ± 0.9" and "1 x 5 x 601" kept in one line in the cells of tables."""
    return "\n".join(
        BREAK_IN_NUMBER.sub(NO_BREAK, line) if line.startswith("|") else line for line in text.splitlines()
    )


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        old = page.read_text(encoding="utf-8")
        if (new := filled(old, Path("results"))) != old:
            files.write(page, new)
