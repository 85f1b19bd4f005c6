"""The settings that can change a trained draft: the rule `train` builds them, the command reads them."""

from typing import Any, Literal

from pydantic import Field

from harness.capture.settings import CaptureSettings
from harness.sections.base import Strict
from harness.sections.training import Training


class TrainSettings(Strict):
    """`algorithm` holds the settings of the one algorithm that is trained, validated by its own model.

    `live` holds those of the capture where its states come from a live engine.
    """

    training: Training
    algorithm: dict[str, Any]
    live: CaptureSettings | None = Field(None, description="give the settings of the capture, or leave it out")
    scale: Literal["full", "smoke", "mini"]
