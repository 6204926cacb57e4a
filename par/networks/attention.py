"""CAT's knowledge-transfer attention (sources.md#cat): one encoder layer with a learned query."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

DROPOUT = 0.1
NORM_EPS = 1e-6


class TransferAttention(nn.Module):
    """h = q + MHA(LN(q), X, X), h = h + FFN(LN(h)), output LN(h), for the query q of one task and tokens X.

    q is the positive part of what is learned.

    Args:
        width: of tokens, query, feed-forward layer and output.
        n_heads: must divide ``width``.
    """

    def __init__(self, width: int, n_heads: int):
        super().__init__()
        self.query = nn.Parameter(torch.randn(width))
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=NORM_EPS) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, n_heads, DROPOUT, bias=False, batch_first=True)
        bound = width**-0.5  # of separate linear layers; torch's module draws all three as one, wider
        nn.init.uniform_(self.attention.in_proj_weight, -bound, bound)
        self.hidden, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [n, m, width] -> features [n, width]; the order of the m tokens does not matter."""
        query = functional.relu(self.query).expand(len(tokens), 1, -1)
        attended, _ = self.attention(self.norms[0](query), tokens, tokens, need_weights=False)
        features = (query + self.dropout(attended)).squeeze(1)
        features = features + self.dropout(self.output(functional.relu(self.hidden(self.norms[1](features)))))
        return self.norms[2](features)
