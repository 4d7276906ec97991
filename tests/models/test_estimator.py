"""The scikit-learn estimator: scikit-learn's own checks, and what they do not know: domains, images, grids."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import domainwise as dw
from domainwise.core.errors import UserError
from small_datasets import table_rows

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_validate  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import estimator_checks_generator  # noqa: E402

QUICK: dict[str, Any] = {"steps": 25, "batch_size": 8, "lr": 3e-2, "device": "cpu"}


def estimator(algorithm: str = "ERM", **options: Any) -> dw.DomainGeneralizer:
    return dw.DomainGeneralizer(algorithm, **{**QUICK, **options})


def samples(n: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes that differ along the first column; a domain is shifted along the second."""
    draw = np.random.default_rng(0)
    y, d = np.array(["no", "yes"])[np.arange(n) % 2], np.array(["x", "y", "z"])[np.arange(n) // 2 % 3]
    X = draw.normal(size=(n, 3)) * 0.3
    X[:, 0] += 2.0 * (y == "yes")
    X[:, 1] += 3.0 * (d == "y") - 3.0 * (d == "z")
    return X, y, d


def test_scikit_learns_own_checks() -> None:
    """All that apply to a classifier; that for other arrays than numpy's, which newer versions have, skips itself."""
    offered, skipped, failed, passed = set(), [], [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for candidate, check in estimator_checks_generator(estimator()):
            name = getattr(check, "func", check).__name__
            offered.add(name)
            try:
                check(candidate)
                passed += 1
            except Exception as error:
                (skipped if type(error).__name__ == "SkipTest" else failed).append(f"{name}: {error}")
    assert failed == []
    expected = ["check_array_api_input"] if "check_array_api_input" in offered else []
    assert [name.partition(":")[0] for name in skipped] == expected and passed > 50


def test_domains_are_what_they_are_given_as() -> None:
    X, y, d = samples()
    shuffled = np.random.default_rng(1).permutation(len(y))
    fitted = estimator("DAT", eps=0.1).fit(X[shuffled], y[shuffled], domains=d[shuffled])
    assert fitted.model_.domains == ("x", "y", "z") and list(fitted.classes_) == ["no", "yes"]
    assert fitted.model_.card.domains == {"x": 20, "y": 20, "z": 20}, "all rows are trained on"
    assert fitted.score(X, y) > 0.9
    assert estimator().fit(X, y).model_.domains == ("0",)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        estimator().fit(X, y, domains=d[:5])
    with pytest.raises(UserError, match="CORAL needs at least 2 training domains"):
        estimator("CORAL").fit(X, y)


def test_rows_belong_to_their_domains_and_labels() -> None:
    """A domain's rows reach the training as that domain's, whatever their order."""
    X, y, d = (part[np.random.default_rng(2).permutation(12)] for part in samples(12))
    X[:, 2] = np.arange(12)
    seen = {}

    def spy(data: dw.Environments, *_: Any, **__: Any) -> None:
        for domain in data.domains:
            marks = data.images[data.rows(domain), 2].int().tolist()
            names = [data.classes[label] for label in data.labels[data.rows(domain)]]
            seen[domain] = list(zip(marks, names, strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("domainwise.models.estimator.fit", spy)
        estimator().fit(X, y, domains=d)
    assert seen == {name: [(i, y[i]) for i in range(12) if d[i] == name] for name in "xyz"}


def test_hyper_parameters_are_parameters() -> None:
    one = estimator("DAT", eps=2.0)
    assert one.get_params()["eps"] == 2.0 and one.get_params()["algorithm"] == "DAT"
    copy = clone(one)
    assert copy.get_params() == one.get_params() and copy is not one
    copy.set_params(eps=0.5, steps=3, alpha=0.2)
    assert (copy.get_params()["eps"], copy.steps, one.get_params()["eps"]) == (0.5, 3, 2.0)
    assert "eps=2.0" in repr(one)
    X, y, _ = samples(20)
    fitted = copy.fit(X, y)
    assert fitted.model_.card.hparams["eps"] == 0.5 and fitted.model_.card.training["run"]["steps"] == 3
    with pytest.raises(UserError, match="unknown hyper-parameter of DAT 'epz': did you mean 'eps'"):
        estimator("DAT", epz=1).fit(X, y)


def test_grids_of_numpy_numbers() -> None:
    X, y, d = samples()
    grid = {"batch_size": np.array([4, 8]), "eps": np.logspace(-2, -1, 2), "algorithm": ["DAT"]}
    search = GridSearchCV(estimator(steps=5), grid, cv=LeaveOneGroupOut(), error_score="raise")
    search.fit(X, y, groups=d, domains=d)
    assert set(search.best_params_) == {"batch_size", "eps", "algorithm"}
    assert len(search.best_estimator_.model_.domains) == 3


@pytest.mark.parametrize("order", [("algorithm", "eps", "batch_size"), ("batch_size", "eps", "algorithm")])
def test_another_algorithm_keeps_only_the_hyper_parameters_it_has(order: tuple[str, ...]) -> None:
    values = {"algorithm": "DAT", "eps": 1.0, "batch_size": 4}
    one = estimator("IRM", penalty=3.0).set_params(**{name: values[name] for name in order})
    own = {"eps": 1.0, "batch_size": 4, "lr": 3e-2}
    assert one._hparams == own and clone(one).get_params() == one.get_params()
    assert one.set_params(algorithm="DAT", steps=4)._hparams == own, "the same algorithm forgets nothing"
    assert one.set_params(algorithm="ERM")._hparams == {"batch_size": 4, "lr": 3e-2}
    assert "epz" in estimator("DAT", epz=1).set_params(algorithm="AT")._hparams, "a name that nothing has is not hidden"
    assert one.set_params(algorithm="nonsense")._hparams == {"batch_size": 4, "lr": 3e-2}, "fit says what is wrong"


def test_grids_over_algorithms_and_their_hyper_parameters() -> None:
    X, y, d = samples()
    grid = [{"algorithm": ["ERM"], "lr": [0.01, 0.03]}, {"eps": [0.1, 0.2], "algorithm": ["DAT", "AT"]}]
    search = GridSearchCV(estimator("IRM", steps=2, penalty=5.0), grid, cv=LeaveOneGroupOut(), error_score="raise")
    search.fit(X, y, groups=d, domains=d)
    tried = [(row["algorithm"], row.get("eps")) for row in search.cv_results_["params"]]
    assert tried == [("ERM", None), ("ERM", None), ("DAT", 0.1), ("DAT", 0.2), ("AT", 0.1), ("AT", 0.2)]
    assert search.best_estimator_.model_.card.algorithm == search.best_params_["algorithm"]
    wrong = GridSearchCV(estimator(steps=2), {"algorithm": ["ERM"], "eps": [1.0]}, cv=2, error_score="raise")
    with pytest.raises(UserError, match="unknown hyper-parameter of ERM 'eps'"):
        wrong.fit(X, y)


def test_leave_one_domain_out_by_cross_validation() -> None:
    X, y, d = samples()
    told = cross_validate(
        estimator("DAT", eps=0.1), X, y, groups=d, cv=LeaveOneGroupOut(), params={"domains": d}, return_estimator=True
    )
    assert [one.model_.domains for one in told["estimator"]] == [("y", "z"), ("x", "z"), ("x", "y")]
    assert min(told["test_score"]) > 0.8


def test_metadata_routing() -> None:
    X, y, d = samples()
    with sklearn.config_context(enable_metadata_routing=True):
        told = cross_validate(
            estimator().set_fit_request(domains=True),
            X,
            y,
            cv=LeaveOneGroupOut(),
            params={"domains": d, "groups": d},
            return_estimator=True,
        )
    assert [one.model_.domains for one in told["estimator"]] == [("y", "z"), ("x", "z"), ("x", "y")]


def test_pipelines() -> None:
    X, y, d = samples()
    pipeline = make_pipeline(StandardScaler(), estimator("DAT", eps=0.1))
    pipeline.fit(X, y, domaingeneralizer__domains=d)
    assert pipeline.score(X, y) > 0.9
    assert pipeline[-1].model_.domains == ("x", "y", "z")


def test_images() -> None:
    draw = np.random.default_rng(0)
    y = np.arange(40) % 2
    X = (draw.integers(0, 100, (40, 3, 8, 8)) + 150 * y[:, None, None, None]).astype(np.uint8)
    fitted = estimator("DAT", eps=0.1, lr=1e-2).fit(X, y, domains=np.arange(40) // 20)
    assert fitted.model_.card.network == "small-cnn" and fitted.score(X, y) > 0.9
    with pytest.raises(ValueError, match="must be uint8, not float64"):
        fitted.predict(X / 255)


def test_held_out_rows_watch_and_the_model_can_be_saved(tmp_path: Path) -> None:
    X, y, d = samples()
    fitted = estimator(held_out=0.25).fit(X, y, domains=d)
    assert fitted.model_.card.domains == {"x": 15, "y": 15, "z": 15}
    assert {name: len(rows) for name, rows in fitted.model_.reference.items()} == {"x": 5, "y": 5, "z": 5}
    loaded = dw.load_model(fitted.model_.save(tmp_path))
    assert np.array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert list(loaded.predict(X)) == list(fitted.predict(X))


def test_random_states() -> None:
    X, y, _ = samples(20)

    def told(state: Any) -> np.ndarray:
        return estimator(random_state=state, steps=2).fit(X, y).predict_proba(X)

    assert np.array_equal(told(3), told(np.int64(3))) and not np.array_equal(told(3), told(4))
    assert np.array_equal(told(np.random.RandomState(1)), told(np.random.RandomState(1)))


@pytest.mark.slow
def test_importing_the_package_does_not_import_scikit_learn() -> None:
    code = "import sys, domainwise; print(any(name.startswith(('sklearn', 'onnx')) for name in sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_an_average_is_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("domainwise.protocol.averages.SMA_START", 2)
    X, y = table_rows(n=30)
    made = dw.DomainGeneralizer("ERM", steps=5, average="sma", batch_size=4, device="cpu").fit(X, y)
    assert made.get_params()["average"] == "sma"
    assert made.model_.weights == "weights averaged over steps 2 to 4 (SMA), up to the last step"
    with pytest.raises(UserError, match="swad finds its start and end by the loss on held-out samples"):
        made.set_params(average="swad").fit(X, y)
