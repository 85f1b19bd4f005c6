"""The settings that can change a trained draft: the rule `train` builds them, the command reads them."""

from typing import Any, Literal

from harness.sections.base import Strict
from harness.sections.training import Training


class TrainSettings(Strict):
    """`algorithm` holds the settings of the one algorithm that is trained, validated by its own model."""

    training: Training
    algorithm: dict[str, Any]
    scale: Literal["full", "smoke", "mini"]
