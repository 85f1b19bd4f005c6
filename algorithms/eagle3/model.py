"""The EAGLE-3 draft network (arXiv 2503.01840; contract 4.1). Module names equal the checkpoint's tensor names.

Slot t joins the embedding of token t+1 with the verifier's state at t, and predicts token t+2. The state it computes
stands in for the verifier's when it drafts on. Called by `training` and `drafting`, which differ only in the token
that a branch step reads: the true one or the draft's own. P-EAGLE is the same network fed with masks.

Shape letters: S = all slots of a pack, R = slots that branch, A = verifier states, H = width, N = heads,
G = key-value heads, D = head size, V = vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from algorithms.attention import Keys, Layout, Seen, attend, visible
from algorithms.exporting import one_window
from algorithms.layers import Attention, GatedMLP, Recomputing, RMSNorm, Rotary


@dataclass(frozen=True)
class Shape:
    """Sizes and flags of a draft; `layer` is the checkpoint's `transformer_layer_config` (contract 1.3)."""

    layer: dict[str, Any]
    aux_layers: list[int]
    target_hidden_size: int
    draft_vocab_size: int
    speculative_tokens: int
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    @property
    def sliding_window(self) -> int | None:
        """Width of the window in tokens; None for full attention."""
        return one_window(self.layer)


Angles = tuple[Tensor, Tensor]
Sides = tuple[Layout, Layout]  # of all slots, and of those that ask


class Layer(Recomputing):
    """A decoder layer; the first one reads [embedding; state] and chooses where its residual starts."""

    def __init__(self, layer: dict[str, Any], first: bool, norm_before_residual: bool) -> None:
        super().__init__()
        width, epsilon = layer["hidden_size"], layer["rms_norm_eps"]
        self.self_attn = Attention(layer, 2 * width if first else width)
        self.mlp = GatedMLP(width, layer["intermediate_size"])
        self.input_layernorm = RMSNorm(width, epsilon)
        self.post_attention_layernorm = RMSNorm(width, epsilon)
        if first:
            self.hidden_norm = RMSNorm(width, epsilon)
        self.norm_before_residual = norm_before_residual

    def read(self, state_RH: Tensor, embedding_RH: Tensor) -> tuple[Tensor, Tensor]:
        """(residual, input of the projections) of each slot."""
        if not hasattr(self, "hidden_norm"):
            return state_RH, self.input_layernorm(state_RH)
        normed = self.hidden_norm(state_RH)
        residual = normed if self.norm_before_residual else state_RH
        return residual, torch.cat((self.input_layernorm(embedding_RH), normed), dim=-1)

    def over_context(
        self, state_SH: Tensor, embedding_SH: Tensor, angles: Angles, rows: Tensor | slice, sides: Sides, seen: Seen
    ) -> tuple[Tensor, Keys]:
        """(residual stream of the slots in `rows` [R, H], keys of all slots)."""
        state, *keys = self.once_more(self._over_context, state_SH, embedding_SH, angles, rows, sides, seen)
        return state, Keys(sides[0], *keys)

    def _over_context(
        self, state_SH: Tensor, embedding_SH: Tensor, angles: Angles, rows: Tensor | slice, sides: Sides, seen: Seen
    ) -> tuple[Tensor, ...]:
        residual, read = self.read(state_SH, embedding_SH)
        keys = Keys.of(sides[0], *self.self_attn.key_value(read, angles))
        query = self.self_attn.query(read[rows], (angles[0][rows], angles[1][rows]))
        return self._finish(residual[rows], attend(query, keys, sides[1], seen)), keys.key_BGLD, keys.value_BGLD

    def over_branch(
        self, state_RH: Tensor, embedding_RH: Tensor, angles: Angles, keys: Keys, queries: Layout, seen: Seen,
        window: int | None,
    ) -> Tensor:  # fmt: skip
        """Residual stream of one slot more behind every branch, [R, H]; `keys` grow by that slot's."""
        given = (state_RH, embedding_RH, angles, keys.now(), queries, seen, window)
        state, key, value = self.once_more(self._over_branch, *given)
        keys.branch.append((key, value))
        return state

    def _over_branch(
        self, state_RH: Tensor, embedding_RH: Tensor, angles: Angles, keys: Keys, queries: Layout, seen: Seen,
        window: int | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        residual, read = self.read(state_RH, embedding_RH)
        key, value = self.self_attn.key_value(read, angles)
        query = self.self_attn.query(read, angles)
        longer = replace(keys, branch=[*keys.branch, (key, value)])
        return self._finish(residual, attend(query, longer, queries, seen, window)), key, value

    def _finish(self, residual_RH: Tensor, mixed_RND: Tensor) -> Tensor:
        """Residual stream after attention and MLP."""
        stream = residual_RH + self.self_attn.o_proj(mixed_RND)
        return stream + self.mlp(self.post_attention_layernorm(stream))


@dataclass
class Branches:
    """Drafting under way at some slots: what step k needs of the steps before it."""

    context: Layout
    queries: Layout
    keys: list[Keys]
    output_RH: Tensor
    feedback_RH: Tensor
    step: int = 0


class Draft(nn.Module):
    """The trained parameters plus the verifier's embedding (a buffer: never trained, never exported).

    Args:
        shape: sizes and flags.
        embedding_VH: the verifier's input embedding.
        draft_to_target_D: target id of each draft id.

    Attributes:
        flex: whether attention skips what a mask hides (`algorithms.flex`), or computes it and drops it.
    """

    layer_class: ClassVar[type[Layer]] = Layer
    flex = False

    def __init__(self, shape: Shape, embedding_VH: Tensor, draft_to_target_D: Tensor) -> None:
        super().__init__()
        width, epsilon = shape.layer["hidden_size"], shape.layer["rms_norm_eps"]
        joined = len(shape.aux_layers) * shape.target_hidden_size
        self.shape = shape
        self.fc = nn.Linear(joined, width, bias=False)
        if shape.norm_before_fc:
            self.input_norm = RMSNorm(joined, epsilon)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(shape.target_hidden_size, epsilon) for _ in shape.aux_layers)
        count = shape.layer["num_hidden_layers"]
        self.layers = nn.ModuleList(
            self.layer_class(shape.layer, i == 0, shape.norm_before_residual) for i in range(count)
        )
        self.norm = RMSNorm(width, epsilon)
        self.lm_head = nn.Linear(width, shape.draft_vocab_size, bias=False)
        self.rotary = Rotary(shape.layer["rope_parameters"], shape.layer["head_dim"])
        self.register_buffer("embedding_VH", embedding_VH, persistent=False)
        self.register_buffer("draft_to_target_D", draft_to_target_D, persistent=False)

    def fuse(self, aux_states_SAH: Tensor) -> Tensor:
        """The verifier's states of each position as one draft state g, [S, H] (contract 3)."""
        joined = aux_states_SAH.flatten(-2).to(self.fc.weight.dtype)
        if self.shape.norm_before_fc:
            joined = self.input_norm(joined)
        if self.shape.fc_norm:
            parts = joined.unflatten(-1, (len(self.shape.aux_layers), -1)).unbind(-2)
            joined = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(joined)

    def start(self, next_token_S: Tensor, aux_states_SAH: Tensor, document_S: Tensor, rows_R: Tensor) -> Branches:
        """Step 0: read the context at all slots, and give the output of those that branch.

        Args:
            next_token_S: token t+1 of each slot t, int64 [S].
            aux_states_SAH: the verifier's states at t.
            document_S: document number of each slot, 0, 1, ...
            rows_R: slots that branch, ascending; the others only give keys and values to later slots.
        """
        return self.start_from(self.fuse(aux_states_SAH), next_token_S, document_S, rows_R)

    def start_from(self, state_SH: Tensor, next_token_S: Tensor, document_S: Tensor, rows_R: Tensor) -> Branches:
        """`start` from states that are fused already."""
        context = Layout.of(document_S)
        queries = context.take(rows_R)
        state = state_SH
        embedding = self._embed(next_token_S, state.dtype)
        angles = self.rotary.angles(context.position_R)
        keys = []
        for depth, layer in enumerate(self.layers):
            last = depth == len(self.layers) - 1
            rows = rows_R if last else slice(None)
            chosen = queries if last else context
            seen = visible(context, chosen, 0, self.shape.sliding_window, self.flex)
            state, seen_keys = layer.over_context(state, embedding, angles, rows, (context, chosen), seen)
            keys.append(seen_keys)
        return Branches(context, queries, keys, *self._outputs(state))

    def extend(self, branches: Branches, token_R: Tensor) -> None:
        """The next step of every branch: read `token_R` and the fed-back state at the next position."""
        self._advance(branches, branches.feedback_RH, token_R)

    def _advance(self, branches: Branches, state_RH: Tensor, token_R: Tensor) -> None:
        """A slot behind every branch that reads the state and the token; one row stands for the same in all."""
        branches.step += 1
        angles = self.rotary.angles(branches.queries.position_R + branches.step)
        window = self.shape.sliding_window
        seen = visible(branches.context, branches.queries, branches.step, window, self.flex)
        state = state_RH
        embedding = self._embed(token_R, state.dtype)
        for layer, keys in zip(self.layers, branches.keys, strict=True):
            state = layer.over_branch(state, embedding, angles, keys, branches.queries, seen, window)
        branches.output_RH, branches.feedback_RH = self._outputs(state)

    def _outputs(self, state_RH: Tensor) -> tuple[Tensor, Tensor]:
        """(what the head reads, what the next step reads)."""
        output = self.norm(state_RH)
        return output, output if self.shape.norm_output else state_RH

    def _embed(self, token_R: Tensor, dtype: torch.dtype) -> Tensor:
        return self.embedding_VH[token_R].to(dtype)
