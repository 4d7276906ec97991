"""Two processes that train one model, for tests: each does all that there is to try, and leaves what it saw."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Algorithm
from domainwise.core.errors import UserError
from domainwise.data.catalogue import DATASETS
from domainwise.data.environments import Environments
from domainwise.engine.execution.capture import changing_tensors
from domainwise.engine.execution.data_parallel import data_parallel
from domainwise.engine.execution.ranks import RankFailed, Ranks, join_ranks
from domainwise.engine.train import Interrupted, train
from domainwise.nets.network import Network
from domainwise.protocol.run_folder import RunFolder
from domainwise.protocol.runs import Run
from domainwise.sweeps.plan_run import plan_run
from hub_models import save_model
from processes import quick_context
from small_problems import CLASSES, SHAPE, advance, batches, features, make

SIZE, STEPS, BATCH = 2, 12, 5
EVERY = sorted(ALGORITHMS)
SHORT = {
    "anneal": 3,
    "ib_anneal": 3,
    "head_steps": 2,
    "min_steps": 2,
    "phases": 2,
    "memory": 20,
    "d_steps": 2,
    "gradient_penalty": 0.1,
    "dropout": 0.3,
}


def algorithm(name: str, dtype: torch.dtype = torch.float64, precision: str = "fp32", **hparams: Any) -> Algorithm:
    """On the small problem, with an odd batch; what happens over time happens early, and there is dropout."""
    given = {key: value for key, value in SHORT.items() if key in ALGORITHMS[name].space}
    net = features()
    net.per_sample = True
    network = Network(net, CLASSES, dropout=0.3, precision=precision)
    return make(name, net=network, dtype=dtype, batch_size=BATCH, **given, **hparams)


def after_steps(trained: Algorithm, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """All that twelve steps have made of an algorithm, its moments and the next random numbers."""
    torch.manual_seed(5)
    losses = advance(trained, batches(STEPS, size=BATCH, dtype=dtype))
    moments = {f"changing {number}": tensor.clone() for number, tensor in enumerate(changing_tensors(trained))}
    random = {"torch": torch.rand(3), "noise": trained.random(3)}
    return trained.state_dict() | moments | random | {"losses": torch.stack(losses)}


def run(name: str = "DAT", **given: Any) -> Run:
    hparams = {"batch_size": BATCH, "dropout": 0.2} | given.pop("hparams", {})
    settings = {"steps": 12, "evaluate_every": 5, "track": ["penalties"], "augmentation": "domainbed"} | given
    return plan_run("BackgroundDigits", name, [0], hparams=hparams, **settings)


def averaged(average: str) -> Run:
    return run("ERM", average=average, track=[], evaluate_every=6)


def of_backbone(folder: Path) -> Run:
    return run(network=f"hf:{folder / 'vit'}", steps=4, evaluate_every=2, track=[])


def few() -> Environments:
    """33 images of each domain, which make odd numbers in both splits' batches."""
    data = DATASETS["BackgroundDigits"].load()
    rows = {name: data.rows(name)[:33] for name in data.domains}
    return Environments.from_arrays({name: (data.images[r], data.labels[r]) for name, r in rows.items()})


def outcome_of(work: Callable[[], Any]) -> Any:
    """What it returns, or the error a user would see."""
    try:
        return work()
    except (UserError, Interrupted) as error:
        return f"{type(error).__name__}: {error}"


def everything(rank: int, folder: Path) -> None:
    """The life of one of the two processes."""
    torch.set_num_threads(1)
    environment = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": SIZE,
        "LOCAL_WORLD_SIZE": SIZE,
        "TORCHELASTIC_RUN_ID": "t",
    }
    os.environ.update({name: str(value) for name, value in environment.items()})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=SIZE)
    ranks = join_ranks(torch.device("cpu"))
    seen: dict[str, Any] = {"ranks": (ranks.rank, ranks.size, ranks.is_rank_zero)}
    for name in EVERY:
        divided = algorithm(name)
        with data_parallel(divided, ranks):
            seen[name] = after_steps(divided)
    seen |= {"shares": shares(ranks)}
    seen |= messages(ranks) | trainings(ranks, folder)
    torch.save(seen, folder / f"{rank}.pt")
    dist.destroy_process_group()


def shares(ranks: Ranks) -> list[int]:
    """How many samples this rank computes of batches of 15, 2 and 1."""
    rows: list[int] = []
    divided = algorithm("ERM")
    divided.network.features[0].register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    with data_parallel(divided, ranks):
        for count in (15, 2, 1):
            divided.network(torch.zeros(count, *SHAPE, dtype=torch.float64))
    return rows


def messages(ranks: Ranks) -> dict[str, Any]:
    """What ranks send each other."""
    mine = torch.arange(8.0).view(1, 2, 2, 2).contiguous(memory_format=torch.channels_last) + ranks.rank
    ranks.broadcast([mine])

    def mistaken(rank: int) -> None:
        with ranks.all_succeed():
            if ranks.rank == rank:
                raise UserError(f"rank {rank} has no data")

    def failing() -> str:
        raise UserError("cannot write")

    def result(work: Callable[[], str]) -> Any:
        try:
            return ranks.on_rank_zero(work)
        except RankFailed:
            return "failed"
        except UserError as error:
            return str(error)

    return {
        "broadcast": mine,
        "any": [ranks.any(ranks.rank == 1), ranks.any(False), ranks.any(True)],
        "rank zero": [result(lambda: f"by {ranks.rank}"), result(failing), result(lambda: "and on")],
        "mistakes": [outcome_of(lambda: mistaken(0)), outcome_of(lambda: mistaken(1)), outcome_of(lambda: mistaken(2))],
    }


def touched(*_: object) -> None:
    raise AssertionError("only rank zero touches the run's folder")


def trainings(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Whole trainings: undisturbed, interrupted and continued, diverged, refused."""
    data = few()
    own = folder / "out" if ranks.is_rank_zero else folder / "nowhere"  # only that of rank zero is used
    for name in (
        () if ranks.is_rank_zero else ("create", "reopen", "append", "save_checkpoint", "load_checkpoint", "finish")
    ):
        setattr(RunFolder, name, touched)

    def trained(which: Run, where: str, **settings: Any) -> Any:
        ended = train(which, own / where, device="cpu", environments=data, checkpoint_seconds=0, **settings)
        return ended.status.status, ended.status.step, [(r.step, r.accuracy, r.loss) for r in ended.records]

    def signal_to_one(step: int) -> None:
        if step == 6 and ranks.rank == 1:
            signal.raise_signal(signal.SIGTERM)

    steps: list[int] = []
    return {
        "whole": trained(run(), "whole"),
        "handed over": outcome_of(lambda: trained(run(), "handed", progress=signal_to_one)),
        "interrupted": outcome_of(lambda: trained(run(), "parts", progress=signal_to_one)),
        "continued": trained(run(), "parts", progress=steps.append),
        "steps": steps,
        "again": trained(run(), "parts", progress=steps.append),
        "averaged": {name: trained(averaged(name), "averaged") for name in ("sma", "swad")},
        "backbone": trained(of_backbone(folder), "backbone"),
        "diverged": trained(run("ERM", hparams={"lr": 1e30}), "diverged")[:2],
        "refused": outcome_of(lambda: trained(run(network="resnet18-scratch", track=[]), "refused")),
    }


def both(folder: Path) -> list[dict[str, Any]]:
    """What the two processes have left."""
    save_model("vit", folder / "vit")
    context = quick_context()
    processes = [context.Process(target=everything, args=(rank, folder)) for rank in range(SIZE)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * SIZE
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(SIZE)]
