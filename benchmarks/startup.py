"""How long commands take to start: those that only read results, and a training of one step.

`--help`, `list`, `status` and `table` read a small finished sweep; `train` trains one step on BackgroundDigits,
evaluates and saves the model, anew every time. Each command runs in a fresh process; prints the median of several, and
whether it imported torch. With --compare the same commands also run with the source of another checkout, in turns, and
the ratio is printed.

    python benchmarks/startup.py [--repeats 5] [--compare OTHER/src]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
SWEEP = "sweep --dataset BackgroundDigits --algorithms ERM,DAT --hparams 1 --trials 1 --steps 2 --hparam batch_size=4"
TRAIN = "train --dataset BackgroundDigits --algorithm ERM --steps 1 --hparam batch_size=4 --device cpu --seed {}"
COMMANDS = ("--help", "list", "status sweep", "table sweep", TRAIN)
PROBE = """
import sys
from domainwise.cli import main
try:
    main(sys.argv[1:])
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def environment(source: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(source.absolute())}


def run(command: str, folder: Path, source: Path) -> tuple[float, bool]:
    """Seconds, and whether torch was imported."""
    words = [sys.executable, "-c", PROBE, *command.split()]
    began = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environment(source), capture_output=True, text=True, check=True)
    return time.perf_counter() - began, done.stderr.split()[-1] == "True"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compare", type=Path, help="src of another checkout")
    arguments = parser.parse_args()
    sources = [SOURCE, *([arguments.compare] if arguments.compare else [])]
    with tempfile.TemporaryDirectory() as top:
        folders = [Path(top) / str(number) for number in range(len(sources))]
        words = [sys.executable, "-m", "domainwise", *SWEEP.split(), "--device", "cpu", "--out", "sweep"]
        for folder, source in zip(folders, sources, strict=True):  # each reads what it has written
            folder.mkdir()
            subprocess.run(words, cwd=folder, env=environment(source), capture_output=True, check=True)
        for command in COMMANDS:
            timed: list[list[float]] = [[] for _ in sources]
            torch = [False for _ in sources]
            for repeat in range(arguments.repeats):
                for number, source in enumerate(sources):
                    seconds, torch[number] = run(command.format(repeat), folders[number], source)
                    timed[number].append(seconds)
            medians = [statistics.median(own) for own in timed]
            name = "train, 1 step" if command == TRAIN else command
            line = f"{name:14} {medians[0]:.2f} s, {'imports torch' if torch[0] else 'no torch'}"
            if arguments.compare:
                line += f"; other {medians[1]:.2f} s, {medians[1] / medians[0]:.1f} times as long"
            print(line, flush=True)


if __name__ == "__main__":
    main()
