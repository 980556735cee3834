"""Renders values as text for people. This package has no side effects, and the present time is an argument."""
