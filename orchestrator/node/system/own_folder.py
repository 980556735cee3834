"""Detects whether another process has removed or replaced a folder that this process uses."""

from __future__ import annotations

import os
import weakref


class OwnFolder:
    """A folder that this process keeps open, so that no later folder can get its inode number."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self.descriptor)
        except OSError:  # in this case nobody can know whether the folder was removed
            self.descriptor = -1

    def is_removed(self) -> bool:
        """Return whether the folder was removed, even if a new folder has the same path. Return False if this is
        unknown.
        """
        if self.descriptor < 0:
            return False
        try:
            return not os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
