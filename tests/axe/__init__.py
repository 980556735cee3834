"""axe-core 4.14.1 (MPL 2.0), as npm's registry has it: it looks for faults that keep people from using a page."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
SCRIPT = Path(__file__).with_name("axe.min.js")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def violations(page: Page, *without: str) -> list[str]:
    """Return what axe finds wrong with the page, `without` these parts: the rule, the sentence, the first elements."""
    script = SCRIPT.read_bytes()
    assert hashlib.sha256(script).hexdigest() == SHA256
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(script.decode())
    asked = "([without, tags]) => axe.run({ exclude: without }, { runOnly: tags, resultTypes: ['violations'] })"
    found = page.evaluate(asked, [[[each] for each in without], list(RULES)])
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes'][:4]]}"
        for each in found["violations"]
    ]
