"""orch top: pages that draw views as lines of text, and the terminal that shows them.

A page knows no terminal: `read` runs in a thread, `draw` returns lines, and `press` returns what a key leads to. Only
`app` imports textual.
"""
