"""Records of a large sweep: planned, read, selected and tabulated.

Writes the records a search on ColoredMNIST would leave (51 evaluations of 4 splits per run) into a temporary folder,
then times what `domainwise table` does with them. Prints seconds and peak memory of the reading process.

    python benchmarks/collection.py [--runs 20000]
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from domainwise.protocol.checked_lines import seal
from domainwise.protocol.records import Record, Status, row_values
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps.collection import collect
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.tables import tables

EVALUATIONS = 51


def write(folder: Path, count: int) -> None:
    luck = random.Random(0)
    plan = plan_sweep("ColoredMNIST", ("ERM", "DAT", "IRM", "VREx"), draws=-(-count // 36), trials=3)
    for run in plan.runs()[:count]:
        parts = [(domain, "out") for domain in run.train_domains] + [(run.test_domains[0], s) for s in ("in", "out")]
        blocks: list[list[Record | Status]] = [
            [
                Record(run.id, 100 * i, *part, luck.random(), luck.random(), round(1.234 * i, 3), luck.random())
                for part in parts
            ]
            for i in range(EVALUATIONS)
        ]
        blocks.append([Status(run.id, run.steps - 1, "done", "", "a GPU", "domainwise", "2026-11-18", 1)])
        path = RunFolder(folder, run).path
        path.mkdir()
        (path / "run.json").write_text(json.dumps(run.describe()))
        data = b""
        for rows in blocks:
            data += seal("".join(json.dumps(row_values(row)) + "\n" for row in rows).encode(), zlib.crc32(data))
        (path / "records.jsonl").write_bytes(data)


def read(folder: Path) -> None:
    began = time.perf_counter()
    collection = collect(folder)
    collected = time.perf_counter()
    shown = [table for rule in ("training-domain", "oracle") for table in tables(collection, rule)]
    done = time.perf_counter()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{len(collection.curves)} runs read in {collected - began:.1f} s, {len(shown)} tables in "
        f"{done - collected:.1f} s, together {done - began:.1f} s; peak memory {memory:.2f} GiB"
    )


def plan(count: int) -> None:
    began = time.perf_counter()
    runs = plan_sweep("ColoredMNIST", ("ERM", "DAT", "IRM", "VREx"), draws=-(-count // 36), trials=3).runs()
    identities = {run.id for run in runs}
    print(f"{len(identities)} runs planned in {time.perf_counter() - began:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(arguments.read)
        return
    plan(100_000)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), arguments.runs)
        subprocess.run([sys.executable, __file__, "--read", folder], check=True)


if __name__ == "__main__":
    main()
