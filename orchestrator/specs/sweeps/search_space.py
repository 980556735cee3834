"""The job's `search` section: a range or choices for each key of the space."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.specs.fields import Also, Line, Spec

Finite = Annotated[float, Field(allow_inf_nan=False)]
MOST: Final = 1e300  # samplers compute the difference of two values, which must be finite too
_PLAIN: Final = re.compile(r"[A-Za-z_][\w./-]*")
# words that YAML doesn't read as text
_MEANS_MORE: Final = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))


def choice_text(value: bool | float | str) -> str:
    """Return a choice as `--set` takes it; text that YAML would read otherwise is quoted."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _MEANS_MORE:
        return value
    return json.dumps(value, ensure_ascii=False)  # ASCII escapes would be surrogate pairs, which YAML does not have


def argument_text(value: bool | float | str) -> str:
    """Return a choice for a program's argument. A point removes its quotes but reads no escapes."""
    text = choice_text(value)
    return f"'{value}'" if "\\" in text else text


class Range(Spec):
    """The values of one key: a range of numbers, or choices."""

    low: int | Finite | None = Field(None, description="the lowest value; whole numbers where both ends are")
    high: int | Finite | None = Field(None, description="the highest value")
    log: bool = Field(False, description="by the logarithm: as many values from 1e-4 to 1e-3 as from 1e-3 to 1e-2")
    choices: tuple[bool | int | Finite | Line, ...] | None = Field(
        None, min_length=1, description="one of these; a list alone is the same"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Range:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log:
                raise ValueError("give choices, or low and high, not both")
            texts = [choice_text(each) for each in self.choices]
            if twice := next((text for text, count in Counter(texts).items() if count > 1), None):
                raise ValueError(f"the choice {twice} is given twice")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices")
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) has to be less than high ({self.high})")
        if max(-self.low, self.high) > MOST:
            raise ValueError(f"low and high have to be between -{MOST:g} and {MOST:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithm needs a low greater than 0, and it is {self.low}")
        return self


def _choices(value: object) -> object:
    """Read a list as choices."""
    return {"choices": value} if isinstance(value, list | tuple) else value


class SearchSpace(Spec):
    """The space that `orch submit --search` searches; the metric is the job's."""

    space: dict[Line, Annotated[Range, BeforeValidator(_choices), Also("array")]] = Field(
        min_length=1, description="a range or choices for each key; keys as --sweep takes them"
    )
    seed: int = Field(0, ge=0, description="of the samplers: the same trials with the same results are drawn again")
