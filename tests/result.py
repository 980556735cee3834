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
    argv: tuple[str, ...] = ()

    @property
    def json(self) -> Any:
        """The JSON that it has printed, which has to be as `orch schema output` says."""
        from tests.output_schema import check

        printed = json.loads(self.out)
        check(self.argv, printed)
        return printed
