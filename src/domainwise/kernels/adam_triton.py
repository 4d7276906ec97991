"""One step of Adam (Kingma & Ba 2015, https://arxiv.org/abs/1412.6980) as a Triton kernel.

g = gradient + decay p,    m += (1 - b1) (g - m),    v = b2 v + (1 - b2) g^2
p -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
"""

from math import log

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _update_kernel(
    p_at,
    g_at,
    m_at,
    v_at,
    count_at,
    n,
    lr,
    rest1,
    beta2,
    rest2,
    log1,
    log2,
    eps,
    decay,
    LR_ON_DEVICE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rate = tl.load(lr) if LR_ON_DEVICE else lr
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    count = tl.load(count_at).to(tl.float64)
    correction1 = (1 - tl.exp(count * log1)).to(tl.float32)
    correction2 = (1 - tl.exp(count * log2)).to(tl.float32)
    p = tl.load(p_at + at, mask=mask, other=0.0)
    g = tl.load(g_at + at, mask=mask, other=0.0) + decay * p
    m = tl.load(m_at + at, mask=mask, other=0.0)
    v = tl.load(v_at + at, mask=mask, other=0.0)
    m += rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    p -= rate / correction1 * m / (tl.sqrt(v) / tl.sqrt(correction2) + eps)
    tl.store(m_at + at, m, mask=mask)
    tl.store(v_at + at, v, mask=mask)
    tl.store(p_at + at, p, mask=mask)


def update(
    p: Tensor,
    g: Tensor,
    moments: tuple[Tensor, Tensor],
    count: Tensor,
    lr: float | Tensor,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """Changes p and the moments; `count` is this step's number, from 1, on the device, where `lr` may be, too."""
    rest1, rest2 = (1 - beta for beta in betas)
    rates = [log(beta) for beta in betas]
    _update_kernel[triton.cdiv(len(p), BLOCK),](
        p, g, *moments, count, len(p), lr, rest1, betas[1], rest2, *rates, eps, decay, isinstance(lr, Tensor), BLOCK
    )
