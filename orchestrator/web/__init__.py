"""The page that `orch ui` serves from this machine at 127.0.0.1: its access control, its answers and its server."""
