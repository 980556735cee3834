"""The mirror copies files between a run's machines and this one.

`fetch` brings whole files by the rules of `policy`; `growing` brings what is new of logs, metrics and small records;
`send` and `contents` send files. `checkpoints`, `outputs` and `given` say which files; `watching` says when. `local`
copies to a folder that a user has named.
"""
