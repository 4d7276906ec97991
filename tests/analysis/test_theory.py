"""The paper's theory as a program: penalties, verdicts, the command, and tracking during training."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import domainwise as dw
from domainwise.analysis import theory
from domainwise.cli import main
from domainwise.engine import penalties as p
from domainwise.nets.network import Network
from domainwise.protocol.run_folder import RunFolder
from small_problems import CLASSES, batches, features


@pytest.fixture
def net() -> Network:
    return Network(features(), CLASSES).double()


def test_penalties_from_their_definitions(net: Network) -> None:
    """Sample by sample, with d/dw by autograd."""
    x, y = (t[0] for t in batches(1)[0])
    gradients = []
    for i in range(len(x)):
        point = x[i : i + 1].clone().requires_grad_()
        gradients.append(torch.autograd.grad(F.cross_entropy(net(point), y[i : i + 1]), point)[0][0].flatten())
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(F.cross_entropy(w * net(x), y), w)[0]
    mean = torch.stack(gradients).mean(0)
    expected = {
        "irm": slope**2,
        "at": torch.stack([g.norm() for g in gradients]).mean(),
        "dat": mean.norm(),
        "ldat": torch.stack([g @ point.flatten() for g, point in zip(gradients, x, strict=True)]).mean(),
    }
    assert p.penalty_irm(net, x, y).item() == pytest.approx(expected["irm"].item(), rel=1e-10)
    assert p.penalty_at(net, x, y).item() == pytest.approx(expected["at"].item(), rel=1e-10)
    assert p.penalty_dat(net, x, y).item() == pytest.approx(expected["dat"].item(), rel=1e-10)
    assert p.penalty_ldat(net, x, y).item() == pytest.approx(expected["ldat"].item(), rel=1e-10)
    assert p.penalty_dat(net, x, y, "linf").item() == pytest.approx(mean.abs().sum().item(), rel=1e-10)
    chunked = p.penalties(net, x, y, chunk=3)
    for name, value in expected.items():
        assert getattr(chunked, name) == pytest.approx(value.item(), rel=1e-6), name


@pytest.mark.parametrize("seed", range(3))
def test_every_statement_holds(seed: int) -> None:
    verdicts, gaps = theory.check(seed)
    assert len(verdicts) == 10 and all(verdict.holds for verdict in verdicts), verdicts
    assert all(list(gap.gaps) == sorted(gap.gaps, reverse=True) for gap in gaps)


def test_a_wrong_statement_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The proposition as printed, sigma without the bias, is not an identity; the command then exits with 1."""
    honest = theory.Pieces.of
    monkeypatch.setattr(theory.Pieces, "of", lambda net, x, y, **_: honest(net, x, y, sigma_with_bias=False))
    verdicts = list(theory.proposition(bias=True))
    assert not any(verdict.holds for verdict in verdicts)
    with pytest.raises(SystemExit) as stop:
        main(["theory", "--out", str(tmp_path)])
    assert stop.value.code == 1 and "FAILS" in capsys.readouterr().out


def test_a_missing_square_is_noticed() -> None:
    assert theory.measured_order(theory.RADII, theory.RADII) == pytest.approx(1.0)
    assert theory.measured_order(theory.RADII, tuple(eps**2 for eps in theory.RADII)) == pytest.approx(2.0)


def test_inner_maximum_is_a_maximum() -> None:
    torch.manual_seed(0)
    net = theory.network(torch.nn.Softplus, bias=True)
    x, y = next(theory.domains(1, 16))
    for ball in ("l2", "linf"):
        best = theory.inner_maximum(net, x, y, 0.05, ball, shared=True)
        for _ in range(50):
            delta = torch.randn(1, 1, theory.INPUTS, dtype=torch.float64)
            delta = 0.05 * (delta.sign() if ball == "linf" else delta / delta.norm())
            assert F.cross_entropy(net(x + delta[0]), y) <= best


def test_command_prints_json_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["theory", "--out", str(tmp_path), "--json"])
    values = json.loads(capsys.readouterr().out)
    assert stop.value.code == 0 and all(verdict["holds"] for verdict in values["verdicts"])
    assert (tmp_path / "linearisation.png").read_bytes().startswith(b"\x89PNG")


def test_tracking_records_penalties_and_changes_nothing(tmp_path: Path) -> None:
    plan = {"hparams": {"batch_size": 4, "dropout": 0.2}, "steps": 5, "evaluate_every": 2}
    plain = dw.plan("BackgroundDigits", "DAT", ["scene1"], **plan)
    tracked = dw.plan("BackgroundDigits", "DAT", ["scene1"], **plan, track=["penalties"])
    outcomes = [dw.train(run, tmp_path, device="cpu") for run in (plain, tracked)]
    first, second = ([(r.step, r.domain, r.split, r.accuracy, r.loss) for r in o.records] for o in outcomes)
    assert first == second
    rows = RunFolder(tmp_path, tracked).read_penalties()
    assert [(r.step, r.domain) for r in rows] == [(s, f"scene{d}") for s in (0, 2, 4) for d in (2, 3, 4)]
    assert all(r.irm >= 0 and r.at >= r.dat > 0 for r in rows)
    assert RunFolder(tmp_path, plain).read_penalties() == []


def test_both_penalties_as_printed_fail_with_biases() -> None:
    """L_x contains sigma, so Penalty_DAT fails with the bias left out of it as Penalty_IRM does."""
    torch.manual_seed(0)
    noted = [verdict for verdict in theory.proposition(bias=True) if verdict.holds]
    assert len(noted) == 2
    for verdict in noted:
        assert float(verdict.note.split()[-1]) > 1e-3
    assert not any(verdict.note for verdict in theory.proposition(bias=False))
