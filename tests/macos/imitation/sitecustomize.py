"""Makes this Python look like Python on macOS, if its folder is in PYTHONPATH: the platform's name, without the
functions that only Linux has, and without /proc, /sys and /dev/shm.

The kernel stays Linux, so this can't show faults of macOS itself. psutil still sees /proc, because on macOS psutil asks
the kernel in another way.
"""

import os
import resource
import select
import signal
import socket
import sys
import sysconfig

import psutil

_LACKS = {
    os: (
        "O_PATH", "O_TMPFILE", "sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "eventfd",
        "splice", "posix_fadvise", "posix_fallocate", "setns", "unshare", "fdatasync", "waitid", "sendfile",
        "copy_file_range", "getresuid",
    ),
    resource: ("prlimit",),
    select: ("epoll",),
    signal: ("SIGRTMIN", "SIGRTMAX", "pidfd_send_signal", "sigwaitinfo", "sigtimedwait"),
    socket: ("SO_PEERCRED", "AF_NETLINK", "TCP_INFO", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT"),
}  # fmt: skip
_ABSENT = ("/proc", "/sys", "/dev/shm", "/etc/machine-id")
_EVENTS = ("open", "os.listdir", "os.scandir")


def _is_absent(path: object) -> bool:
    text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    return text.startswith(_ABSENT) and not sys._getframe(2).f_code.co_filename.startswith(_PSUTIL)


def _hide(event: str, arguments: tuple[object, ...]) -> None:
    if event in _EVENTS and _is_absent(arguments[0]):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


def _hiding(function):
    def call(path, *arguments, **named):
        if _is_absent(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *arguments, **named)

    return call


sysconfig.get_config_vars()  # from a file that is named after the platform
_PSUTIL = os.path.dirname(psutil.__file__)
for _module, _names in _LACKS.items():
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
import fcntl  # noqa: E402

fcntl.F_FULLFSYNC = fcntl.F_GETFL  # a harmless question in the place of macOS's order to write to the disk
os.stat, os.lstat = _hiding(os.stat), _hiding(os.lstat)
sys.addaudithook(_hide)
_uname = os.uname()
os.uname = lambda: os.uname_result(("Darwin", _uname.nodename, "23.0.0", "Darwin Kernel Version 23.0.0", "arm64"))
sys.platform = "darwin"
