"""What torchrun tells a process it has started: how many there are, and which of them this one is."""

import os


def size() -> int:
    """Processes that share one training; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def rank() -> int:
    """This process among all; 0 is the leader, which writes and shows results."""
    return int(os.environ["RANK"]) if size() > 1 else 0


def local_rank() -> int:
    """This process among those of its machine, and the number of its GPU."""
    return int(os.environ["LOCAL_RANK"]) if size() > 1 else 0


def on_one_machine() -> bool:
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def exit_status(status: int) -> int:
    """The status with which to tell of something that the first process of this machine tells of too.

    torchrun ends all processes as soon as one fails: had another this status, the first might not get to say why.
    """
    return 0 if local_rank() else status
