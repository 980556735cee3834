"""The job's `search` section: a range or choices for each key of the space."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.specs.spec import Spec, setting

if TYPE_CHECKING:  # the border reads the types of fields; a submission of cached documents loads no pydantic
    from pydantic import BeforeValidator

    from orchestrator.specs.fields import Also, Finite, Line, Natural

MOST: Final = 1e300  # samplers compute the difference of two values, which must be finite too
_PLAIN: Final = r"[A-Za-z_][\w./-]*"
# words that YAML doesn't read as text
_MEANS_MORE: Final = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))


def choice_text(value: bool | float | str) -> str:
    """Return a choice in the form of `--set`. A text that YAML would not read as text is quoted."""
    if isinstance(value, str) and re.fullmatch(_PLAIN, value) and value.lower() not in _MEANS_MORE:
        return value
    return json.dumps(value, ensure_ascii=False)  # ASCII escapes would be surrogate pairs, which YAML does not have


def argument_text(value: bool | float | str) -> str:
    """Return a choice as a program's argument. A text with a backslash is put into single quotes unchanged, because
    `Axis.argument` later removes the quotes but does not process escapes.
    """
    text = choice_text(value)
    return f"'{value}'" if "\\" in text else text


class Range(Spec):
    """The possible values of one key: a range of numbers, or a list of choices."""

    low: int | Finite | None = setting(
        "the lowest value; only whole numbers are tried if both ends are whole", default=None
    )
    high: int | Finite | None = setting("the highest value", default=None)
    log: bool = setting(
        "sample on a logarithmic scale: as many values from 1e-4 to 1e-3 as from 1e-3 to 1e-2", default=False
    )
    choices: tuple[bool | int | Finite | Line, ...] | None = setting(
        "values to choose from; a list alone means the same", default=None, min_length=1
    )

    def check(self) -> None:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log:
                raise ValueError("give choices, or low and high, not both")
            texts = [choice_text(each) for each in self.choices]
            if twice := next((text for text, count in Counter(texts).items() if count > 1), None):
                raise ValueError(f"the choice {twice} is given twice")
            return
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices")
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) has to be less than high ({self.high})")
        if max(-self.low, self.high) > MOST:
            raise ValueError(f"low and high have to be between -{MOST:g} and {MOST:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"a logarithmic scale needs a low greater than 0, and it is {self.low}")


def _choices(value: object) -> object:
    """Convert a list into a mapping with this list as its `choices`."""
    return {"choices": value} if isinstance(value, list | tuple) else value


class SearchSpace(Spec):
    """The values that `orch submit --search` may choose for each key. The job's `metric` judges the trials."""

    space: dict[Line, Annotated[Range, BeforeValidator(_choices), Also("array")]] = setting(
        "a range or choices for each key; the keys are those of --sweep", min_length=1, part=Range, by_name=True
    )
    seed: Natural = setting("seed of the samplers; with the same results, the same trials are drawn", default=0)
