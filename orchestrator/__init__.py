"""orch: one command runs a PyTorch training job on any cluster.

The same works from Python: `import orchestrator as orch; run = orch.submit("job.yaml", "lab")`. See orchestrator.api.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_FROM_API = ("Run", "RunFailedError", "WaitTimeoutError", "find", "launch", "list_runs", "submit")
__all__ = ["Run", "RunFailedError", "WaitTimeoutError", "errors", "find", "launch", "list_runs", "submit"]

if TYPE_CHECKING:
    from orchestrator import errors
    from orchestrator.api import Run, RunFailedError, WaitTimeoutError, find, launch, list_runs, submit
else:

    def __getattr__(name):
        """Import a public name at its first use. Nodes have this file, but not the modules that define the names."""
        from importlib import import_module

        if name in _FROM_API:
            return getattr(import_module("orchestrator.api"), name)
        if name == "errors":
            return import_module("orchestrator.errors")
        if name == "__version__":
            return import_module("orchestrator.version").__version__
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        """List the module's names, including public names that are not imported yet."""
        return sorted({*globals(), *__all__, "__version__"})
