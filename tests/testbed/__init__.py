"""A real cluster on one Linux machine: `python -m tests.testbed`, described in docs/testbed.md."""
