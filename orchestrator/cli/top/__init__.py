"""orch top: pages that draw views as lines of text, and the application that shows the pages on a terminal.

A page does not access the terminal. Its `read` runs in a thread, `draw` returns lines, and `presses` returns the action
of each key. Only `app` imports textual.
"""
