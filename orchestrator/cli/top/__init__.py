"""orch top: pages that read views and draw them as lines of text, and the terminal that shows them.

A page knows no terminal: `read` runs beside the screen, `draw` gives lines, `press` takes a key and says what follows.
Only `app` imports textual.
"""
