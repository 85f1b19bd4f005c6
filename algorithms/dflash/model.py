"""The DFlash draft network (arXiv 2602.06036; contract 4.4), which DFlash-2 and DSpark extend.

Two streams. The context stream turns the verifier's states at a position straight into a key and a value of every
layer: no embedding, no residual. The block stream reads the token at position m and mask tokens behind it, sees the
context before m and itself, and gives one state a row: row j stands at position m + j.
Module names equal the checkpoint's tensor names. Called by `training` and `drafting`.

Shape letters: S = positions of a pack, R = blocks, T = rows of a block, A = verifier states, H = width, N = heads,
G = key-value heads, D = head size or draft vocabulary, V = vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from algorithms.attention import BlocksSeen, Keys, Layout, Tiles, attend_blocks, blocks_see
from algorithms.exporting import one_window
from algorithms.layers import Attention, GatedMLP, Recomputing, RMSNorm, Rotary

# Blocks of a document whose attention is one matrix product.
TILE_BLOCKS = 8


@dataclass(frozen=True)
class Shape:
    """Sizes and flags of a draft; `layer` is the checkpoint's `transformer_layer_config` (contract 1.3).

    Attributes:
        causal: rows of a block see only rows up to themselves.
        block_size: rows of a block in training.
    """

    layer: dict[str, Any]
    aux_layers: list[int]
    target_hidden_size: int
    draft_vocab_size: int
    speculative_tokens: int
    mask_token_id: int
    block_size: int
    causal: bool

    @property
    def sliding_window(self) -> int | None:
        """Width of the window in tokens; None for full attention."""
        return one_window(self.layer)


Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rows:
    """Where the rows of the blocks under way stand and what they see, for one or more layers.

    Attributes:
        anchors: layout of the anchors.
        angles_RT: rotary angles [R, T, 1, D/2] of all rows.
        first: the first row of a block that asks; those before it only give keys and values to the others.
        kept_N: which of the rows that ask, counted over all blocks, go on behind the attention; None for all.
    """

    anchors: Tiles
    angles_RT: Angles
    mask: BlocksSeen
    first: int = 0
    kept_N: Tensor | None = None

    def angles(self, first: int = 0) -> Angles:
        """Of the rows from `first` on, block after block."""
        cosine_RT, sine_RT = self.angles_RT
        return cosine_RT[:, first:].flatten(0, 1), sine_RT[:, first:].flatten(0, 1)

    def every(self, x: Tensor, first: int = 0) -> Tensor:
        """[R, T - first, ...] of the rows from `first` on, of [R, T, ...] or of [R + 1, ...]: see `Layer`."""
        blocks, size = self.angles_RT[0].shape[:2]
        if len(x) == blocks:
            return x[:, first:]
        known, mask = x[:-1, None], x[-1:, None]
        masks = mask.expand(blocks, size - max(first, 1), *x.shape[1:])
        return masks if first else torch.cat((known, masks), dim=1)

    def blocks(self, x: Tensor, first: int = 0) -> Tensor:
        """[R, T - first, ...] of rows block after block."""
        count, size = self.angles_RT[0].shape[:2]
        return x.unflatten(0, (count, size - first))

    def keep(self, x_RTX: Tensor) -> Tensor:
        """[N, X] of the rows that go on, of [R, T - first, X]; all of them as they are."""
        return x_RTX if self.kept_N is None else x_RTX.flatten(0, 1).index_select(0, self.kept_N)


class Layer(Recomputing):
    """A decoder layer of the block stream. `around_*` are for algorithms that put something around a sublayer.

    It reads and gives [R, T, H]. Before attention tells them apart all masks are alike: the first layer may read
    [R + 1, H], the known tokens' rows and one for all masks.

    Attributes:
        joined: the rows of a block meet outside attention as well, so that all of them are computed.
    """

    joined: ClassVar[bool] = False

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layer = shape.layer
        width, epsilon = layer["hidden_size"], layer["rms_norm_eps"]
        self.self_attn = Attention(layer, width)
        self.mlp = GatedMLP(width, layer["intermediate_size"])
        self.input_layernorm = RMSNorm(width, epsilon)
        self.post_attention_layernorm = RMSNorm(width, epsilon)

    def forward(self, state: Tensor, keys: Keys, rows: Rows) -> Tensor:
        """[R, T, H] or [R + 1, H] -> [R, T - first, H], or [N, H] where not all go on, over the context's keys."""
        return self.once_more(self._forward, state, keys, rows)

    def _forward(self, state: Tensor, keys: Keys, rows: Rows) -> Tensor:
        def asking(heads: Tensor) -> Tensor:
            return rows.every(heads, rows.first).flatten(0, 1)

        def every(heads: Tensor) -> Tensor:
            return rows.every(heads).flatten(0, 1)

        def attention(x: Tensor) -> Tensor:
            query_RTND = rows.blocks(self.self_attn.query(x, rows.angles(rows.first), asking), rows.first)
            own = self.self_attn.key_value(x, rows.angles(), every)
            key_RTGD, value_RTGD = (rows.blocks(part) for part in own)
            mixed_RTM = attend_blocks(query_RTND, keys, (key_RTGD, value_RTGD), rows.anchors, rows.mask)
            return self.self_attn.o_proj(rows.keep(mixed_RTM))

        residual = rows.keep(rows.every(state, rows.first))
        state = residual + self.around_attention(self.input_layernorm(state), attention)
        return state + self.around_mlp(self.post_attention_layernorm(state), self.mlp)

    def around_attention(self, normed: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What the attention of the normed state adds to the residual."""
        return sublayer(normed)

    def around_mlp(self, normed: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What the MLP of the normed state adds to the residual."""
        return sublayer(normed)


@dataclass(frozen=True)
class Context:
    """Keys and values of every layer at every position of a pack."""

    layout: Layout
    keys: list[Keys]


class Backbone(nn.Module):
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
        self.shape = shape
        self.fc = nn.Linear(len(shape.aux_layers) * shape.target_hidden_size, width, bias=False)
        self.hidden_norm = RMSNorm(width, epsilon)
        self.layers = nn.ModuleList(self.layer_class(shape) for _ in range(shape.layer["num_hidden_layers"]))
        self.norm = RMSNorm(width, epsilon)
        self.lm_head = nn.Linear(width, shape.draft_vocab_size, bias=False)
        self.rotary = Rotary(shape.layer["rope_parameters"], shape.layer["head_dim"])
        self.register_buffer("embedding_VH", embedding_VH, persistent=False)
        self.register_buffer("draft_to_target_D", draft_to_target_D, persistent=False)

    def context(self, aux_states_SAH: Tensor, document_S: Tensor) -> Context:
        """Keys and values of every layer at every position, from the verifier's states.

        Args:
            document_S: document number of each position, 0, 1, ..., ascending.
        """
        layout = Layout.of(document_S)
        fused = self.hidden_norm(self.fc(aux_states_SAH.flatten(-2).to(self.fc.weight.dtype)))
        angles = self.rotary.angles(layout.position_R)
        return Context(layout, [Keys.of(layout, *layer.self_attn.key_value(fused, angles)) for layer in self.layers])

    def blocks(
        self,
        context: Context,
        anchor_token_R: Tensor,
        anchor_R: Tensor,
        size: int,
        first: int = 0,
        kept_RT: Tensor | None = None,
    ) -> Tensor:
        """States of R blocks of `size` rows after the final norm, [R, T - first, H]: what the head reads.

        Args:
            anchor_token_R: token of row 0; mask tokens stand behind it.
            anchor_R: position of row 0 in the pack, ascending. The block sees its document's context before it.
            first: the first row of a block whose state is wanted.
            kept_RT: bool [R, T - first], where not all of those are wanted: the result is [N, H].
        """
        anchors, joined = context.layout.tile(anchor_R, TILE_BLOCKS), self.layer_class.joined
        kept_N = None if kept_RT is None else kept_RT.flatten().nonzero().squeeze(1)
        last = self._rows(context, anchors, size, *((0, None) if joined else (first, kept_N)))
        inner = self._rows(context, anchors, size) if len(self.layers) > 1 else last
        state = self._read(anchor_token_R, size).to(context.keys[0].key_BGLD.dtype)
        for layer, keys in zip(self.layers, context.keys, strict=True):
            state = layer(state, keys, last if layer is self.layers[-1] else inner)
        if joined:
            state = replace(last, kept_N=kept_N).keep(state[:, first:])
        return self.norm(state)

    def _rows(self, context: Context, anchors: Tiles, size: int, first: int = 0, kept_N: Tensor | None = None) -> Rows:
        row_T = torch.arange(size, device=anchors.position_R.device)
        cosine, sine = self.rotary.angles((anchors.position_R[:, None] + row_T).flatten())
        angles_RT = cosine.unflatten(0, (-1, size)), sine.unflatten(0, (-1, size))
        causal, window = self.shape.causal, self.shape.sliding_window
        seen = blocks_see(context.layout, anchors, size, causal, window, self.flex, first)
        return Rows(anchors, angles_RT, seen, first, kept_N)

    def _read(self, anchor_token_R: Tensor, size: int) -> Tensor:
        """What the first layer reads, [R + 1, H] or [R, T, H]: see `Layer`."""
        mask, joined = self.shape.mask_token_id, self.layer_class.joined
        if not joined:
            return self.embedding_VH[torch.cat((anchor_token_R, anchor_token_R.new_full((1,), mask)))]
        token_RT = anchor_token_R.new_full((len(anchor_token_R), size), mask)
        token_RT[:, 0] = anchor_token_R
        return self.embedding_VH[token_RT]
