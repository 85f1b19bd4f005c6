"""Matrices whose rows are looked up by token id: no row has to do with another.

A draft marks them, and the optimisers then move each element by itself: a step that makes the whole matrix orthogonal
would move the rows of tokens that no text touched, and costs most where the vocabulary is large.
"""

from torch import nn


def mark_table(parameter: nn.Parameter) -> nn.Parameter:
    """Say of a parameter that it is such a table; returns it."""
    parameter.is_table = True  # type: ignore[attr-defined]
    return parameter


def is_table(parameter: nn.Parameter) -> bool:
    """Whether `mark_table` was called on it."""
    return getattr(parameter, "is_table", False)
