"""Text for people, from values: pure, the clock is an argument."""
