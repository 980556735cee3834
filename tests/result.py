"""How a command ended, for all tests that run one."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)
