"""Slurm's commands as far as a sweep needs them, on this machine, with the same answers and signals.

`install` puts sbatch, srun, squeue and scancel into a folder; jobs are processes whose facts are kept beside them.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("sbatch", "srun", "squeue", "scancel")


def install(folder: Path) -> Path:
    """Returns the folder to put first in PATH."""
    commands = folder / "bin"
    commands.mkdir()
    for name in COMMANDS:
        path = commands / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{__file__}" "{folder}" {name} "$@"\n')
        path.chmod(0o755)
    return commands


def sbatch(folder: Path, script: str) -> None:
    text = Path(script).read_text()
    options = dict(line[10:].partition("=")[::2] for line in text.splitlines() if line.startswith("#SBATCH --"))
    if options.get("partition") == "nowhere":
        sys.exit("sbatch: error: Batch job submission failed: Invalid partition name specified")
    number = len(list(folder.glob("job.*"))) + 1
    job = folder / f"job.{number}"
    job.mkdir()
    (job / "name").write_text(options["job-name"])
    subprocess.Popen(
        [sys.executable, "-S", "-E", __file__, str(folder), "supervise", str(number), script],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(f"Submitted batch job {number}")


def supervise(folder: Path, number: str, script: str) -> None:
    """Stands for the node: the job's own shell does not die of the signals that its step is sent."""
    job = folder / f"job.{number}"
    environment = {**os.environ, "SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    command = ["sh", "-c", f"trap '' TERM; . '{script}'"]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    (job / "pid").write_text(str(process.pid))
    code = process.wait()
    (job / "code").write_text(str(code))


def srun(folder: Path, *arguments: str) -> None:
    files = {name: arguments[arguments.index(name) + 1] for name in ("--output", "--error")}
    for descriptor, name in ((1, "--output"), (2, "--error")):
        path = files[name].replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0")
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), descriptor)
    command = arguments[arguments.index(files["--error"]) + 1 :]
    os.execvp(command[0], command)


def squeue(folder: Path, *arguments: str) -> None:
    assert "--states=all" in arguments and "--format=%i|%T|%j" in arguments
    for job in folder.glob("job.*"):
        code = (job / "code").read_text() if (job / "code").exists() else None
        state = "RUNNING" if (job / "pid").exists() else "PENDING"
        if code is not None:
            state = "CANCELLED" if (job / "cancelled").exists() else "FAILED" if int(code) else "COMPLETED"
        print(f"{job.suffix[1:]}|{state}|{(job / 'name').read_text()}")


def scancel(folder: Path, *numbers: str) -> None:
    for number in numbers:
        job = folder / f"job.{number}"
        (job / "cancelled").touch()
        while not (job / "pid").exists():
            time.sleep(0.01)
        os.killpg(int((job / "pid").read_text()), signal.SIGTERM)


if __name__ == "__main__":
    globals()[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
