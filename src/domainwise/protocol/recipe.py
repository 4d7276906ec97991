"""The recipe of a training: its start, what is frozen, learning rates, clipping and stopping; all off by default.

start          probe: the classifier starts as the best linear one on the features that training starts from
freeze         features: only the classifier learns
train          attention: of the features, only attention layers learn; last:N: only the last N blocks (`nets.parts`)
layer_decay    the factor from a block's learning rate to that of the block before it
lr_schedule    a factor of every learning rate at step t (from 0) of T:
               cosine          (1 + cos(pi t / T)) / 2
               warmup-cosine   (t + 1) / W in the first W = T / 20 steps, then the cosine over the other T - W
early_stop     stops after so many evaluations in a row without a better training-domain validation
clip_gradient  the largest norm of all gradients of one optimiser together
"""

import math
from typing import TYPE_CHECKING

from domainwise.core.errors import UserError, unknown
from domainwise.protocol import limits
from domainwise.protocol.averages import NONE

if TYPE_CHECKING:
    from domainwise.protocol.options import TrainingOptions

STARTS = ("probe",)
FREEZABLE = ("features",)
TRAINABLE = ("attention", "last:N")
CONSTANT = "constant"
LR_SCHEDULES = (CONSTANT, "cosine", "warmup-cosine")
WARM_UP = 20
"""The warm-up is this part of all steps: a twentieth."""


def last_blocks(part: str) -> int:
    """The N of "last:N"; 0 for anything else."""
    start, _, count = part.partition(":")
    return int(count) if start == "last" and count.isascii() and count.isdecimal() and len(count) < 6 else 0


def rate_factor(schedule: str, step: int, steps: int) -> float:
    """By what every learning rate is multiplied at a step (from 0) of a run of so many steps."""
    if schedule == CONSTANT:
        return 1.0
    warm_up = max(1, steps // WARM_UP) if schedule == "warmup-cosine" else 0
    if step < warm_up:
        return (step + 1) / warm_up
    return (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))) / 2


def check_recipe(options: "TrainingOptions", held_out: float) -> None:
    """Raises UserError for unknown names, numbers out of range, and stopping without anything to validate with."""
    if options.start and options.start not in STARTS:
        raise unknown("start", options.start, STARTS)
    if options.freeze and options.freeze not in FREEZABLE:
        raise unknown("part to freeze", options.freeze, (*FREEZABLE, NONE))
    if options.train and options.train != "attention" and not last_blocks(options.train):
        raise unknown("part to train", options.train, TRAINABLE)
    if options.train and options.freeze:
        raise UserError("freeze and train name different parts of the network: give one of them", argument="train")
    if not 0 < options.layer_decay <= 1:
        raise UserError(f"layer_decay must be above 0 and at most 1, not {options.layer_decay}", argument="layer_decay")
    if options.layer_decay < 1 and options.freeze:
        raise UserError("layer_decay changes how features learn, but they are frozen", argument="layer_decay")
    if options.lr_schedule not in LR_SCHEDULES:
        raise unknown("learning rate schedule", options.lr_schedule, LR_SCHEDULES)
    limits.check("early_stop", options.early_stop, 0, limits.STEPS, argument="early_stop")
    if options.early_stop and not held_out:
        raise UserError(
            "early_stop needs held-out samples to validate with, but held_out is 0: hold some out, or set the steps",
            argument="early_stop",
        )
    if options.early_stop and options.average == "swad":
        raise UserError(
            "swad averages up to an end that it finds itself: leave out early_stop, or average by sma or ema",
            argument="early_stop",
        )
    if not 0 <= options.clip_gradient < math.inf:
        raise UserError(
            f"clip_gradient must be a finite number of at least 0, not {options.clip_gradient}",
            argument="clip_gradient",
        )
