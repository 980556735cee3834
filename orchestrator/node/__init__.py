"""What runs on a node: standard library only, Python 3.9 syntax; launcher.py alone may import torch."""
