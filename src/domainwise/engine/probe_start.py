"""The start "probe": before the training, the best linear classifier on the features the network starts with.

Fine-tuning from a random classifier distorts good features before the classifier has learned to use them; from a
fitted one it does not (LP-FT: Kumar et al. 2022, https://arxiv.org/abs/2202.10054).

The recipe is fixed. The features of every training image are computed once, in eval mode, without augmentation and
dropout, and standardised over all of them: (z_i - mean_i) / max(s_i, rms(s) / 10), where s_i is a feature's standard
deviation. The classifier is the minimum of

    mean_e R_e + 0.01 |W|^2 / 2

by at most 200 iterations of L-BFGS in float64 from zero. It draws no random numbers: all other streams of the run are
as without it.

Without the least deviation a feature that hardly varies on the training images, such as a ReLU that is off on all but
one of them, would be thousands of deviations from its mean on an unseen domain, and outvote all others there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from domainwise.data.environments import Environments
from domainwise.data.streaming import chunks
from domainwise.engine.evaluation import chunk_size
from domainwise.engine.logistic import logistic_regression
from domainwise.nets.modes import evaluating
from domainwise.nets.network import Network

LEAST = 0.1
"""The least standard deviation that a feature is divided by, as a part of the root mean square of all."""


@torch.no_grad()
def fit_classifier(
    network: Network, environments: Environments, rows: Sequence[Tensor], *, given_features: bool = False
) -> None:
    """Replaces the classifier by the best linear one on the features of these rows of each training domain.

    With `given_features` the environments hold features in place of images.
    """
    network.to(environments.device)
    everything = torch.cat(list(rows)).to(environments.device)
    features, labels = [], []
    with evaluating(network):
        for images, y in chunks(environments, everything, chunk_size(environments)):
            x = environments.normalise(images)
            features.append((x if given_features else network.represent(x)).double())
            labels.append(y)
    z = torch.cat(features)
    mean, std = z.mean(0), z.std(0, unbiased=False)
    std = std.clamp(min=LEAST * std.square().mean().sqrt())
    std = torch.where(std > 0, std, 1.0)
    shares = torch.cat([z.new_full((len(part),), 1 / (len(rows) * len(part))) for part in rows])
    weights, bias = logistic_regression((z - mean) / std, torch.cat(labels), network.classes, shares=shares)
    weights = weights / std.unsqueeze(1)
    network.classifier.weight.copy_(weights.T)
    network.classifier.bias.copy_(bias - mean @ weights)
