"""What `import domainwise as dw` offers: new names, registries as mappings, and old names for one release more."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import domainwise as dw
from documents import ROOT
from domainwise.protocol.runs import RECIPE


@pytest.mark.parametrize("name", dw.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(dw, name) is not None and name in dir(dw)


@pytest.mark.parametrize("name", dw.__all__)
def test_the_page_of_the_python_interface_has_every_public_name(name: str) -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    named = re.search(rf"(auto\w+:: domainwise|`dw)\.{name}\b", page)
    assert named or f".. automodule:: {getattr(dw, name).__module__}\n" in page


@pytest.mark.parametrize("function", [dw.fit, dw.tune])
def test_docstrings_name_every_option_of_the_recipe(function: Callable[..., object]) -> None:
    assert set(RECIPE) <= set(re.findall(r"\w+", function.__doc__ or ""))


def test_completion_offers_public_names_alone() -> None:
    assert [name for name in dir(dw) if not name.startswith("__")] == sorted(dw.__all__)


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    script = "import sys, domainwise as dw; dw.list_algorithms(), dw.list_networks(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "matplotlib", "scipy"} & set(done.stdout.split())


def test_names_are_listed_by_pattern_and_registries_are_mappings() -> None:
    assert dw.list_algorithms("*DAT") == ["DAT", "LDAT"]
    assert dw.list_networks("resnet18*") == ["resnet18", "resnet18-live", "resnet18-scratch"]
    assert dw.list_datasets("PACS") == ["PACS"]
    assert "DAT" in dw.ALGORITHMS and dw.ALGORITHMS["ERM"] is dw.ERM
    assert len(dw.ALGORITHMS) == len(dw.list_algorithms()) == len(dict(dw.ALGORITHMS))
    assert dw.NETWORKS.get("no-such-network") is None
    with pytest.raises(KeyError, match="did you mean 'DAT'"):
        dw.ALGORITHMS["DATT"]
    with pytest.raises(dw.UserError, match="unknown dataset 'PACSS'"):
        dw.DATASETS["PACSS"]


@pytest.mark.parametrize(("old", "new"), [("load", dw.load_model), ("Outcome", dw.TrainingResult)])
def test_old_names_work_with_a_warning(old: str, new: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"domainwise.{old} is now domainwise."):
        assert getattr(dw, old) is new


def test_old_modules_work_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"domainwise.runs.Run is now domainwise.protocol.runs.Run"):
        from domainwise.runs import Run  # type: ignore[import-not-found]
    assert Run is dw.Run
    with pytest.raises(ModuleNotFoundError):
        import domainwise.nonsense  # type: ignore[import-not-found]  # noqa: F401


def test_a_run_can_still_be_planned_by_its_class() -> None:
    with pytest.warns(DeprecationWarning, match=r"Run.plan is now domainwise.plan"):
        old = dw.Run.plan("BackgroundDigits", "ERM", ["scene1"], steps=3)
    assert old == dw.plan("BackgroundDigits", "ERM", "scene1", steps=3)


def test_train_takes_a_run_or_a_description(tmp_path: Path) -> None:
    options = {"steps": 2, "hparams": {"batch_size": 4}}
    described = dw.train("BackgroundDigits", "ERM", "scene1", **options, out=tmp_path, device="cpu")
    run = dw.plan("BackgroundDigits", "ERM", "scene1", **options)
    assert described.run == run and dw.train(run, tmp_path, device="cpu").records == described.records
    assert "scene1 (unseen)" in repr(described) and "done after step 1" in repr(described)
    assert "<td>scene2 (trained on)</td>" in described._repr_html_()
    assert described.to_records()[0]["run"] == run.id


def test_a_sweep_in_python_is_continued_and_tabulated(tmp_path: Path) -> None:
    options = {"draws": 1, "trials": 1, "test_domains": ["scene1"], "steps": 2, "hparams": {"batch_size": 4}}
    seen: list[object] = []
    first = dw.sweep(
        "BackgroundDigits", ["ERM"], out=tmp_path, device="cpu", workers=1, progress=seen.append, **options
    )
    assert len(first.runs) == len(first.statuses) == 1 and seen
    again = dw.sweep("BackgroundDigits", "ERM", out=tmp_path, device="cpu", workers=1, **options)
    assert again.statuses == first.statuses
    (table,) = dw.table(tmp_path)
    assert [str(row.method) for row in table.rows] == ["ERM"]
