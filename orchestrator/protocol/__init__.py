"""Data formats that several machines use, with the code that reads and writes them.

The code runs on Python 3.9 with only the standard library, because node.pyz (the zip that runs on the nodes) contains
it.
"""
