"""World size and rank of this process, from the environment that torchrun sets."""

import os


def world_size() -> int:
    """Processes that share one training; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def rank() -> int:
    """This process among all; rank 0 writes and shows results."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_rank() -> int:
    """This process among those of its machine; also the number of its GPU."""
    return int(os.environ["LOCAL_RANK"]) if world_size() > 1 else 0


def on_one_machine() -> bool:
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def exit_status(status: int) -> int:
    """The exit status for an error that all processes of this machine meet: 0 in all but the first.

    torchrun ends all processes as soon as one fails: if another failed first, the first could not print the reason.
    """
    return 0 if local_rank() else status
