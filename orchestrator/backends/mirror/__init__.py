"""Copies files between a run's machines and this one.

`fetch` copies whole files by the rules of `policy`. `growing` copies the new parts of logs, metrics and small records.
`send` and `contents` send files. `checkpoints`, `outputs` and `given` choose the files. `watching` repeats the copies
while the run continues. `local` copies to a folder that a user has named.
"""
