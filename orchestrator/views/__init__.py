"""Views: frozen values for `orch top` and the web page, such as the list of runs, curves, heat maps and logs.

`reader` builds the views from the files of runs. Only `reader` and `logs` read files, and nothing in this package
prints, draws or writes. `orch top` draws the views, and `to_json` converts them for programs.
"""
