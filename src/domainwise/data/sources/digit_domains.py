"""Digits: trained on the first 10,000 images of MNIST, tested on four other datasets of digits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from domainwise.core.errors import UserError
from domainwise.core.phrasing import command
from domainwise.data.catalogue import dataset
from domainwise.data.sources.digit_files import (
    MNIST_M_LABELS,
    SIDE,
    Domain,
    as_domain,
    read_libsvm,
    read_mat,
    read_mnist_m,
)
from domainwise.data.sources.digits import MNIST, mnist
from domainwise.data.sources.downloads import Download
from domainwise.data.sources.parts import Part, Source

if TYPE_CHECKING:
    from domainwise.data.environments import Environments

log = logging.getLogger("domainwise")

TRAINED_ON = 10_000
PUBLISHED = {"MNIST": TRAINED_ON, "SVHN": 26_032, "MNIST-M": 9_001, "SYN": 9_553, "USPS": 2_007}

SVHN = Part(
    "SVHN",
    places=("svhn", "SVHN", ""),
    needs=(("test_32x32.mat",),),
    downloads=(
        Download(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "md5:eb5a983be6a315427106f1b164d9cef3",
            "svhn/test_32x32.mat",
            64_275_384,
        ),
    ),
)
MNIST_M = Part(
    "MNIST-M",
    places=("", "mnist_m", "MNIST-M"),
    needs=(("mnist_m.tar.gz", f"mnist_m/{MNIST_M_LABELS}", MNIST_M_LABELS),),
    layout="the published archive, or what it unpacks to",
    downloads=(
        Download(
            "https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",
            "md5:859df31c91afe82e80e5012ba928f279",
            "mnist_m.tar.gz",
            None,
        ),
    ),
)
SYN = Part(
    "SYN",
    places=("syn", "SYN", "SynthDigits", ""),
    needs=(("synth_test_32x32.mat",),),
    downloads=(
        Download(
            "https://media.githubusercontent.com/media/domainadaptation/datasets/"
            "91ff02225a73db330883843bc41ee3aca59a19d9/synth/synth_test_32x32.mat",
            "sha256:6285fe9a1c6f27b379a47263907a37899b59ce86948fd343a5b904435cde5bcc",
            "syn/synth_test_32x32.mat",
            17_851_156,
        ),
    ),
)
USPS = Part(
    "USPS",
    places=("usps", "USPS", ""),
    needs=(("usps.t.bz2", "usps.t"),),
    downloads=(
        Download(
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/usps.t.bz2",
            "md5:8ea070ee2aca1ac39742fdd1ef5ed118",
            "usps/usps.t.bz2",
            1_831_726,
        ),
    ),
)
OTHERS: dict[str, tuple[Part, Callable[[Path], Domain]]] = {
    "SVHN": (SVHN, read_mat),
    "MNIST-M": (MNIST_M, read_mnist_m),
    "SYN": (SYN, read_mat),
    "USPS": (USPS, read_libsvm),
}


@dataset(
    domains=("MNIST", *OTHERS),
    classes=tuple("0123456789"),
    shape=(3, SIDE, SIDE),
    network="digits-cnn",
    steps=10_001,
    evaluate_every=1_000,
    unseen=tuple(OTHERS),
    held_out=0.0,
    selection="oracle",  # of the last model only: no hyper-parameters are searched
    source=Source(
        "https://arxiv.org/abs/2003.13216",
        "SVHN: non-commercial; the others: none stated, see each page",
        sum(PUBLISHED.values()),
        (MNIST, SVHN, MNIST_M, SYN, USPS),
    ),
)
def Digits(root: Path) -> Environments:
    """Trained on 10,000 digits of MNIST, tested on house numbers, coloured, synthetic and post-office digits.

    A domain whose files are missing is left out with a warning; using it as a test domain is a UserError.
    """
    from domainwise.data.environments import Environments

    digits = mnist(root, "Digits")
    domains = {"MNIST": as_domain(list(digits.images[:TRAINED_ON].numpy()), digits.labels[:TRAINED_ON].numpy())}
    absent = {}
    for name, (part, read) in OTHERS.items():
        files = part.look(root)
        if files is None:
            absent[name] = part.missing(root, "Digits")
        else:
            domains[name] = read(files[0])
    if len(absent) == len(OTHERS):
        raise UserError(next(iter(absent.values())), argument="data_root")
    if absent:
        there = ",".join(name for name in OTHERS if name in domains)
        absent = {name: f"{reason}, or test on what is there: {there}" for name, reason in absent.items()}
        log.warning("Digits in %s is without %s: %s", root, ", ".join(absent), command("data", "get", "Digits"))
    for name, (_, labels) in domains.items():
        if len(labels) != PUBLISHED[name]:
            log.warning("%s has %s digits (published: %s)", name, f"{len(labels):,}", f"{PUBLISHED[name]:,}")
    return replace(Environments.from_arrays(domains, name="Digits", classes=tuple("0123456789")), absent=absent)
