"""Programs that the tests of this folder start."""
