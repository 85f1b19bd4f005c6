"""Drafting algorithms: pure PyTorch. Adding one is a folder here and its name in `NAMES`."""

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from algorithms.settings import DraftConfig

if TYPE_CHECKING:
    from algorithms.contract import Algorithm
    from algorithms.foreign import ForeignLayout

NAMES = ("eagle3", "peagle", "dflash", "dspark", "dflash2")


def _known(name: str, source: str) -> str:
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        fix = near[0] if near else f"use one of {', '.join(NAMES)}"
        raise UnknownAlgorithm(f"{source}: no algorithm called {name!r}. Fix: {fix}")
    return name


class UnknownAlgorithm(ValueError):
    """A name that is not in `NAMES`; the message is one line with the fix."""


def config_class(name: str, source: str = "algorithm") -> type[DraftConfig]:
    """The typed settings of an algorithm, without importing PyTorch."""
    return import_module(f"algorithms.{_known(name, source)}.config").Config


def engine_method(name: str) -> str:
    """The name that vLLM reports for an algorithm (contract 1.4), without importing PyTorch."""
    return import_module(f"algorithms.{_known(name, 'algorithm')}.config").ENGINE_METHOD


def engine_runner(name: str) -> str:
    """`second` for an algorithm that vLLM serves on its second model runner only, else `any`; without PyTorch."""
    return getattr(import_module(f"algorithms.{_known(name, 'algorithm')}.config"), "ENGINE_RUNNER", "any")


def load(name: str) -> "Algorithm":
    """The callables of an algorithm, from its `algorithm.py` (imports PyTorch; the folder's `__init__.py` does not)."""
    return import_module(f"algorithms.{_known(name, 'algorithm')}.algorithm").ALGORITHM


def foreign_layouts() -> "tuple[ForeignLayout, ...]":
    """How other projects save drafts that become checkpoints here, from the `foreign.py` of algorithms with one."""
    modules = [f"algorithms.{name}.foreign" for name in NAMES]
    return tuple(layout for name in modules if find_spec(name) for layout in import_module(name).LAYOUTS)
