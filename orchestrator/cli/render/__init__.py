"""Renders values as text for people. Pure: the present time is an argument."""
