"""The DFlash2 draft network: DFlash's blocks with convolutions inside them, and a selector on top (contract 4.6).

Module names equal the checkpoint's tensor names. Called by `training` and `drafting`.

Shape letters: R = blocks, T = rows of a block, H = width, D = draft vocabulary (all of the verifier's), V = vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from algorithms.dflash import model as dflash
from algorithms.dflash2.convolution import READ, WRITTEN, GroupedDynamicConvolution
from algorithms.dflash2.selector import CandidateSelector


@dataclass(frozen=True)
class Shape(dflash.Shape):
    """Sizes and flags of a draft: what DFlash has, and the sizes of the convolution and of the selector."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


class Layer(dflash.Layer):
    """A decoder layer whose two sublayers read and write through convolutions along the block."""

    joined: ClassVar[bool] = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        sizes = shape.layer["hidden_size"], shape.conv_kernel_size, shape.conv_group_size
        self.attention_conv = GroupedDynamicConvolution(*sizes)
        self.mlp_conv = GroupedDynamicConvolution(*sizes)

    def around_attention(self, normed: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What the attention adds to the residual, [R, T, H]; the context's keys and values are not convolved."""
        return _around(self.attention_conv, normed, sublayer)

    def around_mlp(self, normed: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """What the MLP adds to the residual, [R, T, H]."""
        return _around(self.mlp_conv, normed, sublayer)


def _around(convolution: GroupedDynamicConvolution, normed_RTH: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    # Both sides follow what the sublayer is about to read.
    kernels = convolution.kernels(normed_RTH)
    return convolution(sublayer(convolution(normed_RTH, kernels, READ)), kernels, WRITTEN)


class Draft(dflash.Backbone):
    """The trained parameters; see `algorithms.dflash.model.Backbone`."""

    layer_class: ClassVar[type[dflash.Layer]] = Layer
    shape: Shape

    def __init__(self, shape: Shape, embedding_VH: Tensor, draft_to_target_D: Tensor) -> None:
        super().__init__(shape, embedding_VH, draft_to_target_D)
        layer = shape.layer
        self.candidate_selector = CandidateSelector(layer["vocab_size"], layer["hidden_size"], shape.selector_rank)
