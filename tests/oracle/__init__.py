"""Small programs that run by hand and by orch, and what compares the two."""

import pytest

pytest.register_assert_rewrite("tests.oracle.compare")
