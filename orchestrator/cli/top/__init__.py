"""orch top: pages that draw views as lines of text, and the application that shows the pages on a terminal.

A page does not access the terminal. Its method `read` runs in a thread, `draw` returns lines, and `presses` returns the
action of each key. Only the module `app` imports textual, the library that controls the terminal.
"""
