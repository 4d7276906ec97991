"""Temperature, calibration error, sets and abstaining on a domain of PACS that neither model nor calibration has seen.

A linear probe on frozen features for every pair of domains left out: for unseen domain u, the probes that also leave
out d are calibrated on d; the probe of all three is tested on u. The file of features is written by the caller: numpy
arrays `features` [N, F], `labels`, `domains` (names) and `sizes`, in the order of the domains.

    python benchmarks/calibration.py FEATURES.npz [--json FILE]
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax

from domainwise.engine.logistic import logistic_regression
from domainwise.protocol import calibration as c


def probe(features: torch.Tensor, labels: torch.Tensor, rows: list[np.ndarray], on: np.ndarray) -> np.ndarray:
    """Logits on some rows of the best linear classifier of others."""
    train = np.concatenate(rows)
    z = features[train]
    mean, std = z.mean(0), z.std(0).clamp_min(1e-6)
    weights, bias = logistic_regression((z - mean) / std, labels[train], int(labels.max()) + 1)
    return ((features[on] - mean) / std @ weights + bias).double().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("features", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    loaded = np.load(given.features)
    features, labels = torch.from_numpy(loaded["features"]).float(), torch.from_numpy(loaded["labels"]).long()
    ends = np.cumsum(loaded["sizes"])
    sizes = zip(loaded["domains"].tolist(), ends, loaded["sizes"], strict=True)
    rows = {name: np.arange(end - size, end) for name, end, size in sizes}
    results: dict[str, Any] = {}
    for unseen in rows:
        seen = [domain for domain in rows if domain != unseen]
        logits = {}
        for domain in seen:
            others = [rows[other] for other in seen if other != domain]
            logits[domain] = (probe(features, labels, others, rows[domain]), labels[rows[domain]].numpy())
        fitted, outcomes = c.calibrate_logits(logits, "unseen")
        own = probe(features, labels, [rows[domain] for domain in seen], rows[unseen])
        truth = labels[rows[unseen]].numpy()
        before, after = c.Outcomes.of(own, truth), c.Outcomes.of(own, truth, fitted.temperature)
        threshold = c.set_threshold(outcomes, 0.9)
        p = np.exp(log_softmax(own / fitted.temperature, axis=1))
        answered = after.confidence >= c.coverage_threshold(outcomes, 0.5)
        results[unseen] = {
            "n": len(truth),
            "accuracy": float(after.correct.mean()),
            "temperature": fitted.temperature,
            "own_temperature": c.fit_temperature({unseen: (own, truth)}),
            "ece": [c.expected_calibration_error(before), c.expected_calibration_error(after)],
            "sets_90_coverage": float((after.truth >= threshold).mean()),
            "sets_90_size": float(np.maximum((p >= threshold).sum(1), 1).mean()),
            "coverage_50_answered": float(answered.mean()),
            "coverage_50_error": float(1 - after.correct[answered].mean()),
        }
        print(unseen, json.dumps(results[unseen]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
