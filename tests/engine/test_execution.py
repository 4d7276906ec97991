"""How a step runs is decided once, and what that changes in a network is undone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from domainwise.core.locks import RunLocked
from domainwise.data.catalogue import DATASETS
from domainwise.engine.execution import WORTH_COMPILING, Execution
from domainwise.engine.execution.ranks import Ranks, SharedRunFolder
from domainwise.engine.session import Session
from domainwise.protocol.records import Record, Status
from domainwise.protocol.run_folder import RunFolder
from domainwise.sweeps.plan_run import plan_run
from small_problems import make

CPU, GPU = torch.device("cpu"), torch.device("cuda")
RUN = plan_run("BackgroundDigits", "ERM", [0], hparams={"batch_size": 4}, steps=2)


@pytest.mark.parametrize(
    ("ranks", "steps", "mode"),
    [
        (Ranks(CPU), WORTH_COMPILING, "eager"),
        (Ranks(GPU), WORTH_COMPILING - 1, "captured"),
        (Ranks(GPU), WORTH_COMPILING, "compiled"),
        (Ranks(CPU, 1, 2), WORTH_COMPILING, "ranks"),
        (Ranks(GPU, 1, 2), WORTH_COMPILING, "ranks"),
    ],
)
def test_the_mode_follows_from_ranks_device_and_steps(ranks: Ranks, steps: int, mode: str) -> None:
    execution = Execution.choose(ranks, steps)
    assert execution.mode == mode and execution.captures == (mode in ("captured", "compiled"))
    assert execution.ranks == (ranks if mode == "ranks" else None)
    step = execution.captured_step(make("ERM"))
    assert (step is not None) == execution.captures and (step is None or step.compile == (mode == "compiled"))


def test_a_session_uses_the_given_execution_or_the_best_for_its_device() -> None:
    data = DATASETS["BackgroundDigits"].load()
    assert Session(RUN, data, CPU).execution == Execution("eager")
    session = Session(replace(RUN, steps=WORTH_COMPILING), data, CPU, execution=Execution("captured"))
    assert session.captured is not None and not session.captured.compile


@pytest.mark.parametrize("execution", [Execution("eager"), Execution("ranks", Ranks(CPU, 0, 2))])
def test_a_divided_forward_is_undone(execution: Execution) -> None:
    algorithm = make("EnsembleUAT")

    def overridden() -> list[str]:
        return [name for name, module in algorithm.named_modules() if "forward" in vars(module)]

    with pytest.raises(ZeroDivisionError), execution.divided(algorithm):
        assert len(overridden()) == (0 if execution.ranks is None else 3)
        raise ZeroDivisionError
    assert not overridden()


def test_every_write_needs_the_lock(tmp_path: Path) -> None:
    folder = SharedRunFolder(RunFolder(tmp_path, RUN), Ranks(CPU))
    folder.create()
    with folder.locked():
        (folder.path / "claim.9").write_text("somebody else")
        before = sorted(folder.path.iterdir())
        for write in (
            lambda: folder.append([Record(RUN.id, 0, "scene1", "in", 0.5, 1.0, 0.1)]),
            lambda: folder.append_penalties([]),
            lambda: folder.save_checkpoint({}),
            lambda: folder.finish(Status(RUN.id, 1, "done", ""), {}),
        ):
            with pytest.raises(RunLocked):
                write()
        assert sorted(folder.path.iterdir()) == before
