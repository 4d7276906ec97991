"""Selection and tables by other metrics than accuracy, on records made by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domainwise.core.errors import UserError
from domainwise.protocol.metrics import ACCURACY, METRICS, find_metric
from domainwise.protocol.selection import Curve, select
from domainwise.sweeps.collection import collect
from domainwise.sweeps.published import PublishedRun
from domainwise.sweeps.reading import parse_records
from domainwise.sweeps.tables import table
from handmade_records import STEPS, a_measured_run, a_run, colours, rows, write_done_run


def measured(values: dict[str, dict[str, list[float]]]) -> Curve:
    """From {field: {"scene2 out": one value per step}}; what is not given is 0.5."""
    run = a_run()
    made = []
    for row in rows(run, values.get("accuracy", {})):
        i, part = STEPS.index(row.step), f"{row.domain} {row.split}"
        others: dict[str, Any] = {
            metric.field: values.get(metric.field, {}).get(part, [0.5] * 3)[i]
            for metric in METRICS.values()
            if metric != ACCURACY
        }
        made.append(replace(row, **others))
    return Curve.of(run, made)


def step(curve: Curve, rule: str, metric: str = "accuracy") -> int | None:
    choice = select([curve], "scene1", rule, METRICS[metric])
    return choice and choice.step


def test_a_rule_selects_by_the_metric() -> None:
    domains = a_run().train_domains
    outs = [f"{domain} out" for domain in domains]
    curve = measured(
        {
            "accuracy": {key: [0.1, 0.9, 0.2] for key in outs},
            "macro_f1": {key: [0.7, 0.1, 0.2] for key in outs},
            "loss": {key: [0.7, 0.5, 0.2] for key in outs},
            "calibration_error": {key: [0.0, 0.4, 0.3] for key in outs},
        }
    )
    assert [step(curve, "training-domain", name) for name in ("accuracy", "macro-f1", "nll")] == [10, 0, 20]
    assert step(curve, "training-domain", "calibration-error") == 10, "by accuracy: an untrained network is calibrated"


def test_the_worst_domain_and_the_worst_subgroup_select() -> None:
    first, *rest = (f"{domain} out" for domain in a_run().train_domains)
    curve = measured(
        {
            "accuracy": {first: [0.9, 0.5, 0.1], **{key: [0.2, 0.4, 0.9] for key in rest}},
            "loss": {first: [0.1, 0.5, 0.3], **{key: [0.9, 0.8, 0.3] for key in rest}},
            "worst_class": {first: [0.3, 0.0, 0.2], **{key: [0.3, 1.0, 0.1] for key in rest}},
        }
    )
    assert step(curve, "worst-domain") == 10 and step(curve, "training-domain") == 20
    assert step(curve, "worst-domain", "nll") == 20, "the highest loss is the worst"
    assert step(curve, "worst-subgroup") == 0


def test_one_domain_has_no_worst_and_old_records_no_subgroup() -> None:
    run = a_run()
    assert step(Curve.of(run, rows(run)), "worst-subgroup") is None
    alone = Curve.of(replace(run, train_domains=run.train_domains[:1]), rows(run))
    assert step(alone, "worst-domain") is None and step(alone, "training-domain") == 0


def test_tables_of_another_metric(tmp_path: Path) -> None:
    for trial in range(2):
        a_measured_run(tmp_path, "ERM", 0.9, trial)
        a_measured_run(tmp_path, "DAT", 0.4, trial)
    (found,) = table(tmp_path, "training-domain", metric="nll")
    erm, dat = (next(row for row in found.rows if row.method.algorithm == name) for name in ("ERM", "DAT"))
    assert "negative log-likelihood on the unseen domain" in found.title and str(erm.average) == "0.905 ± 0.005"
    assert dat.difference is not None and dat.difference.gain > 0 and dat.difference.ahead == 2, "lower is better"
    bold = next(cells for cells in found.as_table().rows if cells[0] == "DAT")
    assert type(bold[1]).__name__ == "Bold" and found.as_json()["metric"] == "nll"


def test_runs_without_the_metric_are_named(tmp_path: Path) -> None:
    a_measured_run(tmp_path, "ERM", 0.9)
    write_done_run(tmp_path, colours("DAT", "+90%"), 0.6)
    (found,) = table(tmp_path, "training-domain", metric="auroc")
    assert "left out, recorded without auroc: 1 run of DAT" in found.caption
    assert [str(row.method) for row in found.rows] == ["ERM"]


def test_no_run_with_the_metric_is_an_error(tmp_path: Path) -> None:
    write_done_run(tmp_path, colours("DAT", "+90%"), 0.6)
    with pytest.raises(UserError, match="no run there has recorded macro-f1"):
        table(tmp_path, metric="macro-f1")
    with pytest.raises(UserError, match=r"recorded worst-group \(it needs groups, .* at least 10 samples\); train"):
        table(tmp_path, metric="worst-group")
    with pytest.raises(UserError, match="unknown metric"):
        find_metric("acuracy")


def test_all_fields_come_back_from_columns_and_from_published_lines(tmp_path: Path) -> None:
    folder = a_measured_run(tmp_path, "ERM", 0.9)
    records, status = folder.read()
    assert status is not None
    found = parse_records(folder.records_file.read_bytes(), folder.run)
    assert found is not None and found.columns is not None, "all at once"
    (read,) = collect(tmp_path).curves
    again = PublishedRun.parse(PublishedRun.of(folder.run, status, records).line().encode(), "", "")
    assert again.records() == records
    for metric in METRICS.values():
        for part in read.accuracy:
            values = [
                curve.values(metric)[part].tolist() for curve in (read, Curve.of(folder.run, records), again.curves[0])
            ]
            assert values[0] == values[1] == values[2]
