"""The base of every section of settings. Sections are read by `harness.config` and handed to the commands as JSON."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# The engine, torch and numpy all take these.
Seed = Annotated[int, Field(ge=0, lt=2**32, description="use a whole number from 0 to 4294967295")]


class Strict(BaseModel):
    """A closed, immutable section: an unknown key or a value of another type is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
