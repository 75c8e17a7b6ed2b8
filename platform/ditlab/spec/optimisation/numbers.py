"""Numbers in a range."""

from typing import Annotated

from pydantic import Field

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Warmup = Annotated[int, Field(ge=0, le=10**12)]
