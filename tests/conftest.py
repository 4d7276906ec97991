"""What all tests need: one thread for each of two test processes, a Ctrl-C that is heard, their own decode cache."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def decode_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded images of tests go to a temporary folder, unless the environment says where."""
    with pytest.MonkeyPatch.context() as patch:
        if "DOMAINWISE_CACHE" not in os.environ:
            patch.setenv("DOMAINWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
