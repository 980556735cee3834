"""What a person looks at, as frozen values: runs, one run, its curves, heat maps, logs; `reader` builds them of files.

Nothing here prints, draws or writes; `orch top` draws these values, and `to_json` makes the same of them for programs.
"""
