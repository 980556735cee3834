"""How long a test waits for anything."""

PATIENCE = 240.0
"""Seconds that a test gives an event or a program.

It is a guard, which only a hang reaches, also on a busy machine. A test waits for the event itself, and no test asserts
how long the event took.
"""
