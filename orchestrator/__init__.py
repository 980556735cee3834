"""orch: one command takes one PyTorch training job to any cluster."""

__version__ = "0.1.0"
