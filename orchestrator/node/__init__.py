"""The code that runs on a node. It uses only the standard library and Python 3.9 syntax. Only launcher.py may import
torch.
"""
