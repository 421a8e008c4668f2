"""What every section of venus.toml is: fields with defaults, nothing unknown, nothing that changes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
