"""The DFlash draft network (arXiv 2602.06036; contract 4.4), which DFlash-2 and DSpark extend.

Two streams. The context stream turns the verifier's states at a position straight into a key and a value of every
layer: no embedding, no residual. The block stream reads the token at position m and mask tokens behind it, sees the
context before m and itself, and gives one state a row: row j stands at position m + j.
Module names equal the checkpoint's tensor names. Called by `training` and `drafting`.

Shape letters: S = positions of a pack, R = blocks, T = rows of a block, A = verifier states, H = width, N = heads,
G = key-value heads, D = head size or draft vocabulary, V = vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
    """Where the rows of the blocks under way stand and what they see, for every layer.

    Attributes:
        anchors: layout of the anchors. angles: rotary angles of all rows, block after block.
    """

    anchors: Tiles
    angles: Angles
    mask: BlocksSeen


class Layer(Recomputing):
    """A decoder layer of the block stream. `around_*` are for algorithms that put something around a sublayer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layer = shape.layer
        width, epsilon = layer["hidden_size"], layer["rms_norm_eps"]
        self.self_attn = Attention(layer, width)
        self.mlp = GatedMLP(width, layer["intermediate_size"])
        self.input_layernorm = RMSNorm(width, epsilon)
        self.post_attention_layernorm = RMSNorm(width, epsilon)

    def forward(self, state_RTH: Tensor, keys: Keys, rows: Rows, first: int = 0) -> Tensor:
        """[R, T, H] -> [R, T - first, H], over the context's keys of this layer.

        Rows before `first` only give keys and values to the others.
        """
        return self.once_more(self._forward, state_RTH, keys, rows, first)

    def _forward(self, state_RTH: Tensor, keys: Keys, rows: Rows, first: int) -> Tensor:
        def attention(x_RTH: Tensor) -> Tensor:
            flat, shape = x_RTH.flatten(0, 1), x_RTH.shape[:2]
            query = self.self_attn.query(flat, rows.angles).unflatten(0, shape)
            key, value = (x.unflatten(0, shape) for x in self.self_attn.key_value(flat, rows.angles))
            mixed_RTM = attend_blocks(query, keys, (key, value), rows.anchors, rows.mask)
            return self.self_attn.o_proj(mixed_RTM[:, first:])

        state_RTH = state_RTH[:, first:] + self.around_attention(self.input_layernorm(state_RTH), attention)
        return state_RTH + self.around_mlp(self.post_attention_layernorm(state_RTH), self.mlp)

    def around_attention(self, normed_RTH: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What the attention of the normed state adds to the residual, [R, T, H]."""
        return sublayer(normed_RTH)

    def around_mlp(self, normed_RTH: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What the MLP of the normed state adds to the residual, [R, T, H]."""
        return sublayer(normed_RTH)


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

    def blocks(self, context: Context, anchor_token_R: Tensor, anchor_R: Tensor, size: int, first: int = 0) -> Tensor:
        """States of R blocks of `size` rows after the final norm, [R, T - first, H]: what the head reads.

        Args:
            first: the first row of a block whose state is wanted.
            anchor_token_R: token of row 0; mask tokens stand behind it.
            anchor_R: position of row 0 in the pack, ascending. The block sees its document's context before it.
        """
        shape, anchors = self.shape, context.layout.tile(anchor_R, TILE_BLOCKS)
        position_RT = anchors.position_R[:, None] + torch.arange(size, device=anchor_R.device)
        mask = blocks_see(context.layout, anchors, size, shape.causal, shape.sliding_window, self.flex)
        rows = Rows(anchors, self.rotary.angles(position_RT.flatten()), mask)
        token_RT = torch.full_like(position_RT, shape.mask_token_id)
        token_RT[:, 0] = anchor_token_R
        state = self.embedding_VH[token_RT].to(context.keys[0].key_BGLD.dtype)
        for layer, keys in zip(self.layers, context.keys, strict=True):
            state = layer(state, keys, rows, first if layer is self.layers[-1] else 0)
        return self.norm(state)
