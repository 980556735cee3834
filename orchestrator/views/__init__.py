"""Views: frozen values that `orch top` and the page show, such as the list of runs, curves, heat maps and logs.

`reader` builds the views from the files of runs. Nothing here prints, draws or writes. `orch top` draws the views, and
`to_json` converts them for programs.
"""
