"""Renders values as text for people. Pure; the clock is an argument."""
