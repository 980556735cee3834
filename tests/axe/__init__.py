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


def violations(page: Page) -> list[str]:
    """Return what axe finds wrong with the page as it is: the rule, the sentence, and the first elements."""
    script = SCRIPT.read_bytes()
    assert hashlib.sha256(script).hexdigest() == SHA256
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(script.decode())
    found = page.evaluate("(tags) => axe.run(document, { runOnly: tags, resultTypes: ['violations'] })", list(RULES))
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes'][:4]]}"
        for each in found["violations"]
    ]
