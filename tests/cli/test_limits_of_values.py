"""Values beyond any use, and names longer than any file's: one line each, before anything is allocated or trained."""

from pathlib import Path

import pytest
import torch

from commands import Command, Result
from domainwise.core.errors import UserError
from domainwise.data.batches import batches_of
from domainwise.data.find import find_dataset
from small_datasets import make_folder

LONG, DIGITS = "x" * 5000, "9" * 26
TRAIN = "train --dataset BackgroundDigits --device cpu --steps 2"
SWEEP = "sweep --dataset BackgroundDigits --algorithms ERM --dry-run"


def one_short_line(result: Result) -> bool:
    return result.is_one_line_error and len(result.err) < 600


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{TRAIN} --hparam batch_size=999999999999", "batch_size=999999999999 must be at most 1e+06"),
        (f"{TRAIN} --hparam batch_size={DIGITS}", "must be at most 1e+06"),
        (f"{TRAIN} --algorithm DANN --hparam mlp_depth={DIGITS}", "must be at most 100"),
        (f"{TRAIN} --algorithm ADA --hparam memory={DIGITS}", "must be at most 1e+06"),
        (f"{TRAIN} --algorithm IRM --hparam anneal={DIGITS}", "must be at most 1e+09"),
        (f"{TRAIN} --hparam lr=1e999", "lr=inf must be a number, and finite"),
        (f"{TRAIN} --hparam lr=NaN", "lr=nan must be a number, and finite"),
        (f"{TRAIN} --hparam lr={'9' * 6000}", "must be a number"),
        (f"{TRAIN} --draw {DIGITS}", f"draw must be at most 1,000,000,000, not {DIGITS}"),
        (f"{TRAIN} --trial {DIGITS}", "trial must be at most 1,000,000,000"),
        (f"{TRAIN} --seed {DIGITS}", "seed must be at most 9,223,372,036,854,775,807"),
        (f"{TRAIN} --seed=-{DIGITS}", "seed must be at least -9223372036854775807"),
        (f"{TRAIN} --steps {DIGITS}", "steps must be at most 1,000,000,000"),
        (f"{TRAIN} --steps {'9' * 40}", "not a number of more than 30 digits"),
        (f"{TRAIN} --evaluate-every {DIGITS}", "evaluate_every must be at most 1,000,000,000"),
        (
            "train --data photos --network small-cnn --image-size 100000000",
            "image size must be at most 8,192, not 100000000 (--image-size)",
        ),
        (f"train --data photos --network small-cnn --image-size {DIGITS}", "image size must be at most 8,192"),
        (f"{SWEEP} --trials 1000000000", "trials must be at most 1,000,000, not 1000000000 (--trials)"),
        (f"{SWEEP} --hparams {DIGITS}", "draws must be at most 1,000,000"),
        (f"{SWEEP} --hparams 10000 --trials 1000", "40,000,000 runs are more than 1,000,000"),
        ("compare --dataset BackgroundDigits --dry-run --trials 1000000000", "trials must be at most 1,000,000"),
        ("demo --trials 1000000000", "trials must be at most 1,000,000"),
        (f"demo --steps {DIGITS}", "steps must be at most 1,000,000,000"),
        (f"bench --batch-size {DIGITS}", "must be at most 1e+06"),
    ],
)
def test_numbers(domainwise: Command, words: str, expected: str) -> None:
    if "photos" in words:
        make_folder(Path("photos"), count=1)
    result = domainwise(*words.split())
    assert one_short_line(result) and expected in result.err, result.err


@pytest.mark.parametrize(
    "words",
    [
        "train --dataset {}",
        "train --data {}",
        f"{TRAIN} --algorithm {{}}",
        f"{TRAIN} --network {{}}",
        f"{TRAIN} --test-domain {{}}",
        f"{TRAIN} --hparam {{}}=1",
        f"{TRAIN} --hparam lr={{}}",
        f"{TRAIN} --out {{}}",
        f"{TRAIN} --weights {{}}",
        f"{TRAIN} --data-root {{}}",
        "compare --data {}",
        "compare --dataset BackgroundDigits --algorithms {}",
        "sweep --dataset {} --algorithms ERM",
        "predict {} photo.jpg",
        "evaluate {} --data photos",
        "drift {} photo.jpg",
        "export {}",
        "status {}",
        "table {}",
        "report {}",
        "cam {}",
        "audit {}",
        "perturbations {}",
        "publish {}",
        "unpack {}",
        "data check {}",
        "weights get {}",
        "reproduce {}",
    ],
)
def test_names(domainwise: Command, words: str) -> None:
    result = domainwise(*words.replace("{}", LONG).split())
    assert result.status == 2 and not result.out and len(result.err) < 1500, result.err[:300]
    assert "Traceback" not in result.err and LONG not in result.err


def test_a_batch_beyond_the_memory_is_an_error_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    data = find_dataset("BackgroundDigits").load()
    rows = [data.rows(domain) for domain in data.domains[:2]]
    needed = 4 * 2 * 1000 * 3 * 28 * 28
    for available, refused in ((needed - 1, True), (needed, False), (0, False)):
        monkeypatch.setattr("domainwise.data.batches.available_memory", lambda available=available: available)
        if not refused:
            batches_of(data, rows, 1000, torch.Generator())
            continue
        with pytest.raises(UserError, match=r"a batch of 2 x 1,000 inputs of shape 3x28x28 takes at least 0\.0 GiB"):
            batches_of(data, rows, 1000, torch.Generator())
