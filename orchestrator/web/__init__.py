"""The page that `orch ui` serves from this machine at 127.0.0.1: who may see it, what it answers, how it is served."""
