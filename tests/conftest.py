"""What all tests need: one thread for each of two test processes, and a Ctrl-C that is heard."""

import signal

import torch

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)
