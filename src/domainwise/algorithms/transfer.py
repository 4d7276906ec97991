"""Transfer: methods whose features should serve classifiers of other domains, or slightly different ones, as well."""

import torch
from torch import Tensor
from torch.func import functional_call

from domainwise.algorithms.base import Draw, algorithm, cross_entropy
from domainwise.algorithms.gradients import logit_gradients
from domainwise.algorithms.risk import ERM
from domainwise.nets.modes import has_live_batch_norm
from domainwise.protocol.spaces import Choice, LogInteger, LogUniform, Uniform

Head = dict[str, Tensor]


@algorithm
class Transfer(ERM):
    """Nearby classifiers do equally well: mean_e R_e + lambda max_(|h' - h| <= delta) [max_e R_e(h') - min_e R_e(h')].

    h is the classifier, with all its weights; h' comes from `d_steps` projected gradient steps of size `lr_d` from h.

    Paper: Zhang et al. 2021, https://arxiv.org/abs/2106.03632.
    Note: h' is a constant for the gradient, so its term moves the features alone. One Adam step descends the sum;
    DomainBed makes one step per term, the second with the h' of the step before. DomainBed's random search sets an
    option, `gda`, that trains neither features nor classifier; it does not exist here. As in DomainBed a BatchNorm that
    learns sees all domains at once for the risk and one at a time for the gap; unlike there its statistics count the
    latter once, not once per step of h'.
    Try it: when the classifier is to be retrained or fine-tuned on the new domain.
    """

    needs_domains = 2
    needs_features = True
    moves_features = True
    passes = 1.2
    space = ERM.space | {
        "lambda": LogUniform(-2, 1, default=1.0),
        "delta": Uniform(0.1, 3.0, default=2.0),
        "d_steps": Choice((1, 2, 5), default=10, minimum=1, maximum=1000),
        "lr_d": LogUniform(-4.5, -2.5, default=1e-3),
    }

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        risk = cross_entropy(self.classify(z), y).mean()
        if has_live_batch_norm(self.network):
            z = self.apply_to_domains(self.network.represent, x, domain_by_domain=True)
        return risk + self.hparams["lambda"] * self.gap(self.worst_head(z.detach(), y), z, y)

    def gap(self, head: Head, z: Tensor, y: Tensor) -> Tensor:
        """The largest less the smallest of the domains' risks with this classifier."""
        risks = cross_entropy(functional_call(self.network.classifier, head, (z,)), y).mean(1)
        return risks.max() - risks.min()

    def worst_head(self, z: Tensor, y: Tensor) -> Head:
        """Ascends the gap from the classifier, in the ball around it."""
        centre = {name: parameter.detach() for name, parameter in self.network.classifier.named_parameters()}
        head = centre
        for _ in range(self.hparams["d_steps"]):
            head = {name: weights.detach().requires_grad_() for name, weights in head.items()}
            gradients = torch.autograd.grad(self.gap(head, z, y), list(head.values()))
            uphill = zip(head.items(), gradients, strict=True)
            moves = {n: w.detach() + self.hparams["lr_d"] * g - centre[n] for (n, w), g in uphill}
            length = torch.stack([move.square().sum() for move in moves.values()]).sum().sqrt()
            shorten = (self.hparams["delta"] / length.clamp_min(1e-12)).clamp(max=1)
            head = {name: centre[name] + shorten * move for name, move in moves.items()}
        return head


@algorithm
class TRM(ERM):
    """A domain's classifier serves others: mean_e R_e + mean_q [sum_(p != q) a_qp R_p(w_q) - c <v_q, grad_w R_q(w_q)>].

    w_q is a classifier for domain q alone, kept between steps and moved by 30 gradient steps of size 0.1 on R_q. v_q =
    H^-1 grad_w sum_p a_qp R_p(w_q), H the Hessian of R_q, by ten terms of a Neumann series: with c = 1 the second term
    is how w_q answers to the features. a_q weighs the hardest domains most: a_qp <- a_qp exp(eta R_p(w_q)), normalised.

    Paper: Xu & Jaakkola 2021, https://arxiv.org/abs/2110.09940.
    Note: c is `cos_lambda`. ERM for `anneal` steps. As in DomainBed the series ends early where an entry of it exceeds
    10. Unlike there the classifiers w_q start from the network's, v_q covers biases too, and a_qp grows by the risk
    itself, not by a_qp times it.
    Try it: when each domain alone would lead to another classifier.
    """

    needs_domains = 2
    needs_features = True
    moves_features = True
    begins_at = "anneal"
    inner_steps, inner_lr = 30, 0.1
    terms, largest = 10, 10.0
    passes = 1.4
    space = ERM.space | {
        "cos_lambda": LogUniform(-5, 0, default=1e-4),
        "anneal": LogInteger(0, 4, default=200),
        "eta": LogUniform(-3, -1, default=1e-2),
    }

    heads: Tensor
    shares: Tensor

    def setup(self) -> None:
        super().setup()
        domains, own = self.problem.domains, self.network.classifier
        start = torch.cat([own.weight, own.bias[:, None]], 1).detach()
        self.register_buffer("heads", start.repeat(domains, 1, 1))  # [E, K, F + 1], the biases last
        self.register_buffer("shares", (1 - torch.eye(domains)) / (domains - 1))  # a_qp

    def schedule(self, step: int, draw: Draw) -> None:
        super().schedule(step, draw)
        self.phase = "transfer" if step >= self.hparams["anneal"] else "train"

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.represent(x)
        risk = cross_entropy(self.classify(z), y).mean()
        return risk + self.transfer_risk(z, y) if self.phase == "transfer" else risk

    def transfer_risk(self, z: Tensor, y: Tensor) -> Tensor:
        inputs = torch.cat([z, torch.ones_like(z[..., :1])], -1)
        self.fit_heads(inputs.detach(), y)
        logits = torch.einsum("pbf,qkf->qpbk", inputs, self.heads)
        labels = y.expand(len(y), *y.shape)
        risks = cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1)).mean(1).view(len(y), len(y))  # R_p(w_q)
        shares = self.shares.clone()  # those of this step: the buffer moves on
        transferred = (shares * risks).sum(1)
        with torch.no_grad():
            gradients = torch.einsum("qpbk,pbf->qpkf", logit_gradients(logits, labels), inputs) / y.shape[1]
            answers = self.inverse_hessian(torch.einsum("qp,qpkf->qkf", shares, gradients), inputs)
            self.shares.copy_((shares.log() + self.hparams["eta"] * risks).softmax(1))  # no overflow
        own = self.risk_gradients(inputs, y)
        return (transferred - self.hparams["cos_lambda"] * (answers * own).sum((1, 2))).mean()

    def risk_gradients(self, inputs: Tensor, y: Tensor) -> Tensor:
        """The gradient of R_q by w_q [E, K, F + 1]."""
        return logit_gradients(inputs @ self.heads.mT, y).mT @ inputs / y.shape[1]

    @torch.no_grad()
    def fit_heads(self, inputs: Tensor, y: Tensor) -> None:
        for _ in range(self.inner_steps):
            self.heads.sub_(self.inner_lr * self.risk_gradients(inputs, y))

    def inverse_hessian(self, vectors: Tensor, inputs: Tensor) -> Tensor:
        """sum_k (I - H_q)^k v_q, which approximates H_q^-1 v_q for vectors [E, K, F + 1]."""
        p = (inputs @ self.heads.mT).softmax(-1)
        total, term = vectors, vectors
        growing = torch.ones_like(vectors[:, :1, :1], dtype=torch.bool)
        for _ in range(self.terms):
            moves = p * (inputs @ term.mT)
            term = term - (moves - p * moves.sum(-1, keepdim=True)).mT @ inputs / inputs.shape[1]
            total = torch.where(growing, total + term, total)
            growing = growing & (total.abs().amax((1, 2), keepdim=True) <= self.largest)
        return total
