"""Temperature, calibration error, sets and abstaining on a domain that neither model nor calibration has seen.

A linear probe on frozen features for every pair of domains left out: for unseen domain u, the probes that also leave
out d are calibrated on d; the probe of all others is tested on u. Every trial trains each probe on another random 80 %
of its samples. The folder is one that `domainwise features` writes.

    domainwise features PACS --network resnet50-v1 --image-size 224 --out FOLDER
    python benchmarks/calibration.py FOLDER [--trials 3] [--json FILE]
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax

from domainwise.data.environments import Environments
from domainwise.data.sources.saved import load_environments
from domainwise.engine.logistic import logistic_regression
from domainwise.protocol import calibration as c

SHARE = 0.8
"""Of the samples of a training domain, in each trial."""


def probe(data: Environments, domains: list[str], on: str, trial: int) -> np.ndarray:
    """Logits on all samples of one domain of the best linear classifier of others."""
    random = torch.Generator().manual_seed(trial)
    chosen = []
    for domain in domains:
        rows = data.rows(domain)
        chosen.append(rows[torch.randperm(len(rows), generator=random)[: int(SHARE * len(rows))]])
    train = torch.cat(chosen)
    z = data.images[train].float()
    mean, std = z.mean(0), z.std(0).clamp_min(1e-6)
    weights, bias = logistic_regression((z - mean) / std, data.labels[train], len(data.classes))
    return ((data.images[data.rows(on)].float() - mean) / std @ weights + bias).double().numpy()


def measure(data: Environments, unseen: str, trial: int) -> dict[str, Any]:
    """One unseen domain in one trial."""
    seen = [domain for domain in data.domains if domain != unseen]
    truths = {domain: data.labels[data.rows(domain)].numpy() for domain in data.domains}
    logits = {
        domain: (probe(data, [other for other in seen if other != domain], domain, trial), truths[domain])
        for domain in seen
    }
    fitted, outcomes = c.calibrate_logits(logits, "unseen")
    own, truth = probe(data, seen, unseen, trial), truths[unseen]
    before, after = c.Outcomes.of(own, truth), c.Outcomes.of(own, truth, fitted.temperature)
    threshold = c.set_threshold(outcomes, 0.9)
    p = np.exp(log_softmax(own / fitted.temperature, axis=1))
    answered = after.confidence >= c.coverage_threshold(outcomes, 0.5)
    return {
        "accuracy": float(after.correct.mean()),
        "temperature": fitted.temperature,
        "own_temperature": c.fit_temperature({unseen: (own, truth)}),
        "ece_before": c.expected_calibration_error(before),
        "ece_after": c.expected_calibration_error(after),
        "sets_90_coverage": float((after.truth >= threshold).mean()),
        "sets_90_size": float(np.maximum((p >= threshold).sum(1), 1).mean()),
        "coverage_50_answered": float(answered.mean()),
        "coverage_50_error": float(1 - after.correct[answered].mean()) if answered.any() else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("features", type=Path)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    data = load_environments(given.features)
    results: dict[str, Any] = {"data": data.name, "torch": str(torch.__version__), "domains": {}}
    for unseen in data.domains:
        trials = []
        for trial in range(given.trials):
            trials.append(measure(data, unseen, trial))
            print(unseen, trial, json.dumps(trials[-1]), flush=True)
        results["domains"][unseen] = {"n": data.sizes[unseen], "trials": trials}
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
