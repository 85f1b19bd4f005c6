"""The base of every section of settings. Sections are read by `harness.config` and handed to the commands as JSON."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A closed, immutable section: an unknown key or a value of another type is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
