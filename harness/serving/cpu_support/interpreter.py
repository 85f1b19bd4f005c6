"""Triton's interpreter as the Triton of vLLM's CPU build. Called by `cpu_support.install` before vLLM is imported.

vLLM takes Triton for usable on a CPU when a backend is registered under "cpu"; then it allows its second model runner.
With TRITON_INTERPRET set, no backend ever compiles: kernels run in Python, on arrays that share the tensors' memory.
"""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


def _with_boolean_mask(method: Callable, position: int) -> Callable:
    """`method` of the interpreter with the mask at `position` cast: it refuses masks computed as integers."""

    def call(self: Any, *arguments: Any) -> Any:
        mask = arguments[position]
        if mask is not None and mask.data.dtype != bool:
            mask.data = mask.data.astype(bool)
        return method(self, *arguments)

    return call


def _log1p(value: Any) -> Any:
    """log(1 + value) of an interpreted block: the interpreter has nothing for the device library's functions."""
    import numpy
    from triton.language import tensor
    from triton.runtime.interpreter import TensorHandle

    return tensor(TensorHandle(numpy.log1p(value.handle.data), value.handle.dtype), value.type)


def stand_in() -> None:
    """Register the stand-in, and have vLLM say so instead of falling back where the second runner cannot serve."""
    os.environ |= {"TRITON_INTERPRET": "1", RUNNER: "1"}
    from triton.backends import backends
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import InterpreterBuilder

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    libdevice.log1p = _log1p
    for name, position in (("create_masked_load", 1), ("create_masked_store", 2)):
        setattr(InterpreterBuilder, name, _with_boolean_mask(getattr(InterpreterBuilder, name), position))
