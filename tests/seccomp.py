"""System calls that the kernel refuses a process of the tests, as it may refuse them in a container: seccomp(2)."""

from __future__ import annotations

import ctypes
import os

X86 = os.uname().machine == "x86_64"
PTRACE, PROCESS_VM_READV, SOCKET = (101, 310, 41) if X86 else (117, 270, 198)
AF_NETLINK = 16
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # with EPERM
LOAD, EQUALS, RETURN = 0x20, 0x15, 0x06
NUMBER, FIRST_ARGUMENT = 0, 16  # offsets of what a filter may look at


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction))]


def refuse_ptrace() -> None:
    """Refuse this thread, and what it starts, to look into other processes."""
    _install((LOAD, 0, 0, NUMBER), (EQUALS, 2, 0, PTRACE), (EQUALS, 1, 0, PROCESS_VM_READV),
             (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE))  # fmt: skip


def refuse_netlink() -> None:
    """Refuse this thread, and what it starts, to ask the kernel whose a socket is."""
    _install((LOAD, 0, 0, NUMBER), (EQUALS, 0, 2, SOCKET), (LOAD, 0, 0, FIRST_ARGUMENT), (EQUALS, 1, 0, AF_NETLINK),
             (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE))  # fmt: skip


def _install(*lines: tuple[int, int, int, int]) -> None:
    filled = (_Instruction * len(lines))(*lines)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    program = _Program(len(lines), filled)
    assert libc.prctl(22, 2, ctypes.byref(program)) == 0, ctypes.get_errno()  # PR_SET_SECCOMP
