"""Threads that share the samples of a batch compute what one does."""

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from domainwise import Environments
from domainwise.algorithms import ALGORITHMS
from domainwise.engine.execution import thread_parallel as shares
from domainwise.engine.execution.thread_parallel import WORTH, Shares, Sharing, operations, share
from domainwise.engine.session import Session
from domainwise.nets.network import Network, build
from domainwise.sweep.plan import plan_run
from small_problems import CLASSES, advance, batches, features, make

ONCE = sorted(name for name in ALGORITHMS if not ALGORITHMS[name].differentiates_twice)


class Watched(nn.Module):
    """Features that tell who computes them; those of a sample depend on it alone."""

    out_features = 5
    samples_apart = True

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(features(), nn.Dropout(dropout))
        self.seen: list[tuple[int, int, int, bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        cast, graph = torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()
        self.seen.append((threading.get_ident(), torch.get_num_threads(), len(x), cast, graph))
        z: Tensor = self.layers(x)
        return z


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Which share whatever work there is."""
    monkeypatch.setattr(shares, "WORTH", 0)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def environments() -> Environments:
    generator = torch.Generator().manual_seed(0)
    images = {
        name: (torch.randint(0, 256, (40, 2, 28, 28), dtype=torch.uint8, generator=generator), torch.arange(40) % 2)
        for name in ("+90%", "+80%", "-90%")
    }
    return Environments.from_arrays(images)


@pytest.mark.parametrize("name", ONCE)
def test_three_threads_train_what_one_does(name: str) -> None:
    """3 x 5 samples, five steps in float64: weights, perturbations and all else."""
    alone, together = make(name, batch_size=5), make(name, batch_size=5)
    for module in together.modules():
        if isinstance(module, Network):
            module.features.forward = Shares(module.features, 3)
    losses = []
    for algorithm in (alone, together):
        torch.manual_seed(6)
        losses.append(advance(algorithm, batches(5, size=5)))
    assert torch.allclose(*map(torch.stack, losses), rtol=1e-10)
    for key, value in alone.state_dict().items():
        if key.startswith("context."):
            continue  # biases before a BatchNorm: their gradient is rounding, which Adam makes large
        assert torch.allclose(value, together.state_dict()[key], rtol=1e-10, atol=1e-10), key


@pytest.mark.usefixtures("two_threads")
def test_each_thread_computes_its_share_by_itself_and_in_the_modes_of_the_first() -> None:
    net = Watched()
    net.forward = Shares(net, 2)  # type: ignore[method-assign]
    x = torch.rand(7, 2, 6, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        z = net(x)
    assert sorted(one[2] for one in net.seen) == [3, 4] and {one[3:] for one in net.seen} == {(True, True)}
    assert [one[1] for one in net.seen if one[0] != threading.get_ident()] == [1]
    (slope,) = torch.autograd.grad(z.sum(), x)
    assert slope.shape == x.shape and slope.abs().sum((1, 2, 3)).all()
    net.seen.clear()
    with torch.no_grad():
        assert not net(x).requires_grad
    assert {one[3:] for one in net.seen} == {(False, False)}, "nothing is kept for gradients that nobody wants"


@pytest.mark.parametrize("wrong", [0, 1])
def test_what_goes_wrong_in_a_share_is_raised_when_all_have_ended(wrong: int) -> None:
    net, ended = Watched(), []
    shares = Shares(net, 2)

    def work(number: int) -> None:
        time.sleep(0.02 * (number != wrong))
        ended.append(number)
        if number == wrong:
            raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        shares.each(work)
    assert sorted(ended) == [0, 1]


def test_gradients_may_be_asked_for_twice() -> None:
    net = Watched()
    x = torch.rand(4, 2, 6, 6, requires_grad=True)
    slopes = []
    for forward in (net.forward, Shares(net, 2)):
        z = forward(x)
        first = torch.autograd.grad(z[:, 0].sum(), x, retain_graph=True)[0]
        slopes.append(torch.stack([first, torch.autograd.grad(z[:, 1].sum(), x)[0]]))
    assert torch.allclose(*slopes) and not torch.equal(slopes[0][0], slopes[0][1])


def test_a_sample_for_fewer_than_all_is_one_threads_work() -> None:
    net = Watched()
    net.forward = Shares(net, 3)  # type: ignore[method-assign]
    net(torch.rand(2, 2, 6, 6))
    assert [one[2] for one in net.seen] == [2]


def test_weights_without_use_have_no_gradient() -> None:
    net = Watched()
    net.idle = nn.Parameter(torch.ones(1))
    net.forward = Shares(net, 2)  # type: ignore[method-assign]
    net(torch.rand(4, 2, 6, 6)).sum().backward()
    assert [name for name, weight in net.named_parameters() if weight.grad is None] == ["idle"]


def test_a_copy_has_shares_of_its_own() -> None:
    net = Watched()
    net.forward = Shares(net, 2)  # type: ignore[method-assign]
    copy = deepcopy(net)
    with torch.no_grad():
        next(copy.parameters()).zero_()
    assert copy.forward.features is copy  # type: ignore[attr-defined]
    x = torch.rand(4, 2, 6, 6)
    assert not torch.equal(copy(x), net(x)) and torch.equal(net(x), Watched()(x))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("name", "precision", "net", "shared"),
    [
        ("DAT", "bf16", Watched(), True),
        ("DAT", "fp32", Watched(), False),
        ("LDAT", "bf16", Watched(), False),
        ("DAT", "bf16", Watched(dropout=0.5), False),
        ("DAT", "bf16", features(), False),
    ],
)
def test_samples_are_shared_where_that_is_exact_and_pays(
    name: str,
    precision: str,
    net: nn.Module,
    shared: bool,
) -> None:
    algorithm = make(name, net=Network(deepcopy(net), CLASSES))
    within = share(algorithm, precision)
    assert isinstance(within, Sharing) == shared
    with pytest.raises(KeyboardInterrupt), within:
        assert torch.get_num_threads() == (1 if shared else 2)
        assert isinstance(algorithm.network.features.forward, Shares) == shared
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2
    assert "forward" not in vars(algorithm.network.features), "a model that is handed on has none of it"


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_makes_its_steps_in_bf16_on_two_threads(name: str) -> None:
    run = plan_run("ColoredMNIST", name, "-90%", network="small-cnn", hparams={"batch_size": 4}, precision="bf16")
    session = Session(run, environments(), torch.device("cpu"))
    assert isinstance(session.sharing, Sharing) == (name != "LDAT")
    for _ in range(2):
        session.step()
    assert not session.diverged()


@pytest.mark.usefixtures("two_threads")
def test_one_thread_and_many_are_left_to_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, most in ((1, 2), (2, 1)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(shares, "MOST", most)
        assert isinstance(share(make("ERM", net=Network(Watched(), CLASSES)), "bf16"), nullcontext)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("network", "batch_size", "shared"), [("mnist-cnn", 32, True), ("mnist-cnn", 8, False), ("small-cnn", 64, False)]
)
def test_little_work_is_not_shared(
    network: str, batch_size: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "WORTH", WORTH)
    run = plan_run("ColoredMNIST", "ERM", "-90%", network=network, hparams={"batch_size": batch_size}, precision="bf16")
    session = Session(run, environments(), torch.device("cpu"))
    assert isinstance(session.sharing, Sharing) == shared


def test_operations_are_those_of_the_layers() -> None:
    network, problem = build("mnist-cnn", (2, 28, 28), 2), make("ERM").problem
    expected = 2 * (28 * 28 * 64 * 18 + 14 * 14 * 128 * (576 + 1152 + 1152))
    assert operations(network.features.double(), replace(problem, shape=(2, 28, 28))) == expected
    assert operations(make("ARM").network.features, problem) == 0, "it has a further channel"


@pytest.mark.usefixtures("two_threads")
def test_a_training_on_two_threads_repeats_and_continues_bit_by_bit() -> None:
    data = environments()
    run = plan_run("ColoredMNIST", "DAT", "-90%", hparams={"batch_size": 5}, precision="bf16")
    run = replace(run, network="small-cnn")
    whole, again = (Session(run, data, torch.device("cpu")) for _ in range(2))
    assert isinstance(whole.sharing, Sharing)
    for _ in range(6):
        whole.step()
    for _ in range(3):
        again.step()
    state = deepcopy(again.state())
    continued = Session(run, data, torch.device("cpu"))
    continued.load_state(state)
    for session in (again, continued):
        for _ in range(3):
            session.step()
        for key, value in whole.algorithm.state_dict().items():
            assert torch.equal(value, session.algorithm.state_dict()[key]), key
