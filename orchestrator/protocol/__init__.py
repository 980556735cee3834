"""Data formats that several machines use, with the code that reads and writes them. Standard library only, Python
3.9, part of node.pyz (the zip that runs on the nodes).
"""
