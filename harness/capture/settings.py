"""The settings that can change what is captured: the rule `capture` passes them, the command reads them."""

from typing import Any, Literal

from pydantic import Field

from harness.config import Reproduction
from harness.sections.base import Strict
from harness.sections.data import Reply
from harness.sections.training import Capture


class CaptureSettings(Strict):
    """What `python -m harness.capture` is told."""

    capture: Capture
    reply: Reply
    system_prompt: str | None = Field(None, description="give a system turn, or leave it out for the template's own")
    min_supervised_tokens: int = Field(4, ge=1, description="drop a reply with fewer tokens than this")
    dropped_share_max: float = Field(0.05, ge=0, le=1, description="fail when a larger share of rows is dropped")
    max_model_len: int = Field(ge=16, description="use the longest prompt plus reply, in tokens, as the server does")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="use the server's: bfloat16 or float32")
    tensor_parallel_size: int = Field(1, ge=1, description="spread the verifier over this many GPUs")
    seed: int = Field(0, ge=0, description="use a whole number from 0; it matters for a temperature above 0 only")
    scale: Literal["full", "smoke", "mini"]


def capture_settings(reproduction: Reproduction) -> dict[str, Any]:
    """The slice of a reproduction that the capture depends on, JSON-able."""
    data, serve = reproduction.data, reproduction.serve
    return CaptureSettings(
        capture=reproduction.capture, reply=data.reply, system_prompt=data.system_prompt,
        min_supervised_tokens=data.min_supervised_tokens, dropped_share_max=data.dropped_share_max,
        max_model_len=serve.max_model_len, dtype=serve.dtype,
        tensor_parallel_size=serve.tensor_parallel_size, seed=data.seed, scale=reproduction.scale,
    ).model_dump()  # fmt: skip
