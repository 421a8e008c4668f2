"""What every section of venus.toml is: fields with defaults, nothing unknown, nothing that changes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A section."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true where a number stands: Python would take it for 1, and a limit of 1 row/s stops everybody."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind in (int, float):
            raise PydanticCustomError(f"{kind.__name__}_type", "should be a number")
        return value
