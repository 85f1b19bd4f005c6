"""All experts of a layer in two matrix products, for the training of a miniature.

Called by `build`. With four experts, computing all of them is quicker on a CPU than picking the tokens of each: the
shares of those that a token did not choose are zero, so that values and gradients are those of the family's own code.

Shape letters: T = tokens, E = experts, K = experts of a token, H = hidden size, I = an expert's inner size.
"""

from typing import Any

from torch import Tensor
from torch.nn.functional import linear

NAME = "all_experts_at_once"


def all_experts_at_once(experts: Any, hidden_TH: Tensor, chosen_TK: Tensor, share_TK: Tensor) -> Tensor:
    """What transformers' experts module gives; `experts` holds its weights, in either of the two layouts, and its gate.

    Args:
        experts: the module; its `is_transposed` tells the layout.
        hidden_TH: its input.
        chosen_TK: experts of each token.
        share_TK: their shares.
    """
    into, out_of = experts.gate_up_proj, experts.down_proj
    if experts.is_transposed:  # [E, H, 2I] and [E, I, H]
        into, out_of = into.transpose(1, 2), out_of.transpose(1, 2)
    count, hidden, inner = out_of.shape
    share_TE = share_TK.new_zeros(len(hidden_TH), count).scatter(1, chosen_TK, share_TK)
    inside = linear(hidden_TH, into.reshape(count * 2 * inner, hidden)).unflatten(1, (count, 2 * inner))
    if experts.has_bias:
        inside = inside + experts.gate_up_proj_bias
    weighted_TEI = experts._apply_gate(inside) * share_TE.unsqueeze(-1)
    made_TH = linear(weighted_TEI.flatten(1), out_of.transpose(0, 1).reshape(hidden, count * inner))
    return made_TH + share_TE @ experts.down_proj_bias if experts.has_bias else made_TH


def register_experts() -> str:
    """Make it known to transformers; returns the name to ask for it by."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, all_experts_at_once)
    return NAME
