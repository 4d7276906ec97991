"""What a run may record besides accuracies."""

from dataclasses import asdict
from functools import partial

from domainwise.analysis.penalties import penalties
from domainwise.engine.session import Session
from domainwise.protocol.seeds import permutation
from domainwise.records import PenaltyRecord

SAMPLES = 512
"""Training images per domain on which penalties are measured, the same at every step of every run of a trial."""


def track_penalties(session: Session, step: int) -> list[PenaltyRecord]:
    """The penalties on clean training images of every training domain, in eval mode."""
    run, environments, algorithm = session.run, session.environments, session.algorithm
    algorithm.eval()
    records = []
    for number, domain in enumerate(run.train_domains):
        rows = environments.split(domain, run.trial, run.held_out)["in"]
        rows = rows[permutation(len(rows), "track", run.trial, domain)][:SAMPLES].to(environments.device)
        images, y = environments.take(rows)
        measured = penalties(partial(algorithm.predict, domain=number), environments.normalise(images), y)
        records.append(PenaltyRecord(run.id, step, domain, **asdict(measured)))
    algorithm.train()
    return records
