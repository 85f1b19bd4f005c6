"""Draft checkpoints in the speculators format: reading, writing, and `python -m harness.checkpoint lint`."""

from harness.checkpoint.reading import read_checkpoint
from harness.checkpoint.writing import write_checkpoint

__all__ = ["read_checkpoint", "write_checkpoint"]
