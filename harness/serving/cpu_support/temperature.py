"""The sampling settings of a request for each of its draft tokens. Called by `cpu_support.install`.

To verify drafts at a temperature above 0, vLLM 0.32.0 writes each request's temperature (and top-k, top-p) once for
every draft token into a fresh tensor. On CPU its replacement of that kernel converts both tensors to int64: 0.8 becomes
0, and the result goes into a copy that nobody reads. The logits are then divided by whatever memory held before, and
every token that stands in for a refused draft is noise. Greedy requests do not come by here.
"""

from torch import Tensor


def expanded(
    setting_B: Tensor, cumulative_B: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """Each request's setting for each of its draft tokens, [num_tokens], in the setting's dtype.

    Args:
        setting_B: one value a request.
        cumulative_B: draft tokens of this request and all before it.
        num_tokens: of all requests together.
        replace_from, replace_to: a value that is written as another: temperature 0 must not divide.
    """
    counts_B = cumulative_B.diff(prepend=cumulative_B.new_zeros(1))
    return setting_B.masked_fill(setting_B == replace_from, replace_to).repeat_interleave(
        counts_B, output_size=num_tokens
    )


def repair() -> None:
    """Let the rejection sampler of this process's engines read the settings that were asked for."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expanded
