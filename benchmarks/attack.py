"""Attacks on the program, by seeds: kills, bad invocations, damaged files, scripts in names.

Every try is one command in a process of its own with a time limit; `attacks/tries.py` says how its end is judged. The
same seed repeats the same tries. An interrupted attack continues: kinds that are complete in OUT are not repeated,
unless seed, numbers or source have changed.

    python benchmarks/attack.py --kills 20 --invocations 400 --bytes 400 --values 400 --pages 14 --out attack.json
    python benchmarks/attack.py --only values:17                    # one try again, with all it prints
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attacks import damage, invocations, kills, pages, tries, workspace
from attacks.tries import BAD, GOOD, MEANINGS, Outcome

KINDS = {
    "kills": ("Sweeps that are killed and continued", 20),
    "invocations": ("Commands with wrong arguments", 400),
    "bytes": ("Files with damaged bytes", 400),
    "values": ("Files with wrong values", 400),
    "pages": ("Names with scripts, on the page in a browser", 14),
}
"""Title and usual number of tries of every kind."""


@contextmanager
def exclusively(place: Path) -> Iterator[Path]:
    """A new folder at a path that is the same every time, since identities of runs depend on the paths of images."""
    try:
        place.mkdir(parents=True)
    except FileExistsError:
        raise SystemExit(
            f"{place} is in use, or was left by an attack that was killed: remove it, or give --place"
        ) from None
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def attack(kind: str, count: int, seed: int, place: Path, jobs: int, only: int | None = None) -> Iterator[Outcome]:
    """The outcomes of one kind of tries; `only` is the number of a single one."""
    numbers = range(count) if only is None else [only]
    top = place / "workspace"
    if not top.exists():
        top.mkdir()
        workspace.build(top)
    if kind == "kills":
        expected, seconds = kills.quiet_sweep(top, place)
        yield from (kills.kill(number, seed, top, place, expected, seconds) for number in numbers)
    elif kind == "pages":
        pages.check_browser(place)
        yield from (pages.attack(number, seed, place) for number in numbers)
    else:
        planned = {
            "invocations": lambda: invocations.invocation_tries(top, max(numbers) + 1, seed),
            "bytes": lambda: damage.byte_tries(top, place, max(numbers) + 1, seed),
            "values": lambda: damage.value_tries(top, place, max(numbers) + 1, seed),
        }[kind]()
        yield from tries.outcomes([planned[number] for number in numbers], top, place, jobs)


def summary(outcomes: Iterable[Outcome], seconds: float) -> dict[str, Any]:
    """Counts of a kind, in all and by target, and every bad one."""
    ended = sorted(outcomes, key=lambda one: one.number)
    by_target: dict[str, Counter[str]] = {}
    for one in ended:
        by_target.setdefault(one.target, Counter())[one.outcome] += 1
    bad = [{k: v for k, v in asdict(one).items() if k != "shown"} for one in ended if one.outcome in BAD]
    return {
        "tries": len(ended),
        "seconds": round(seconds, 1),
        "outcomes": dict(Counter(one.outcome for one in ended)),
        "by_target": {target: dict(counts) for target, counts in sorted(by_target.items())},
        "bad": bad,
    }


def markdown(report: dict[str, Any]) -> str:
    """A table of all kinds, one of every kind's targets, and the bad ones."""
    used = [name for name in (*GOOD, *BAD) if any(name in kind["outcomes"] for kind in report["kinds"].values())]
    head = [f"| | tries | {' | '.join(used)} |", f"|---|---:|{'---:|' * len(used)}"]

    def row(title: str, counts: dict[str, int]) -> str:
        return f"| {title} | {sum(counts.values())} | {' | '.join(str(counts.get(name, '')) for name in used)} |"

    lines = [f"Seed {report['seed']}, commit {report['commit']}.", "", *head]
    lines += [row(KINDS[kind][0], facts["outcomes"]) for kind, facts in report["kinds"].items()]
    lines += ["", *(f"- {name}: {MEANINGS[name]}" for name in used)]
    for kind, facts in report["kinds"].items():
        lines += ["", f"## {KINDS[kind][0]}", "", *head]
        lines += [row(target, counts) for target, counts in facts["by_target"].items()]
        lines += [
            "",
            *(
                f"- {b['outcome']}, {kind}:{b['number']}, {b['target']}, {b['what']}, `{b['command']}`: {b['line']}"
                for b in facts["bad"]
            ),
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, (title, usual) in KINDS.items():
        parser.add_argument(f"--{kind}", type=int, default=usual, help=f"{title} ({usual})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="tries at once")
    parser.add_argument("--out", type=Path, help="JSON file of the counts")
    parser.add_argument("--place", type=Path, default=Path(tempfile.gettempdir()) / "domainwise-attack", help="scratch")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="one try, with everything it prints")
    options = parser.parse_args()
    tries.preload()
    if options.only:
        kind, number = options.only.split(":")
        with exclusively(options.place) as place:
            for one in attack(kind, int(number) + 1, options.seed, place, 1, int(number)):
                print(f"{one.target}: {one.what}\n{one.command}\n{one.outcome} after {one.seconds} s\n{one.shown}")
        return
    report = run_kinds(options)
    print(markdown(report))
    sys.exit(any(facts["bad"] for facts in report["kinds"].values()))


def run_kinds(options: argparse.Namespace) -> dict[str, Any]:
    """Every kind that OUT does not have yet."""
    from domainwise import __version__
    from domainwise.core.provenance import commit, package_version

    about: dict[str, Any] = {"seed": options.seed, "commit": commit(), "version": __version__}
    about |= {"python": platform.python_version(), "torch": package_version("torch"), "meanings": MEANINGS}
    report = about | {"kinds": {}}
    if options.out and options.out.exists():
        before = json.loads(options.out.read_text())
        if all(before.get(name) == about[name] for name in ("seed", "commit", "version")) and "+" not in str(
            about["commit"]
        ):
            report["kinds"] = before["kinds"]
    with exclusively(options.place) as place:
        for kind in KINDS:
            count = getattr(options, kind)
            if not count or report["kinds"].get(kind, {}).get("tries") == count:
                continue
            began = time.monotonic()
            outcomes = []
            for one in attack(kind, count, options.seed, place, options.jobs):
                outcomes.append(one)
                if one.outcome in BAD:
                    print(
                        f"{one.outcome}: {kind}:{one.number} {one.what} | {one.command} | {one.line}", file=sys.stderr
                    )
            report["kinds"][kind] = summary(outcomes, time.monotonic() - began)
            if options.out:
                options.out.write_text(json.dumps(report, indent=1) + "\n")
    return report


if __name__ == "__main__":
    main()
