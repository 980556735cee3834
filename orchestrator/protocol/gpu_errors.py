"""Classifies error messages of CUDA and NCCL: whether the machine or the network is to blame, and what helps.

Pure, Python 3.9. The leader uses this table for the budget of a failure and for hosts to avoid, and the verdict uses it
for its hint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from orchestrator.protocol.str_enum import StrEnum


class Blame(StrEnum):
    """The party to blame for a failure."""

    PROGRAM = "program"
    """The program, its settings or its packages. Another start would end in the same way."""
    NETWORK = "network"
    """The network or a peer. Another start on the same hosts may succeed."""
    MACHINE = "machine"
    """The host's GPU or driver. Another start should use other hosts."""


class GpuError(NamedTuple):
    """A kind of failure, recognized by its message."""

    pattern: str
    blame: Blame
    hint: str


# NCCL comes first, because its messages quote those of the system, which alone mean something else. Patterns are as
# exact as the sources, because without an error the last lines of a rank are searched, and these are the program's own.
_ERRORS = (
    GpuError(
        r"Error while (creating|attaching to) shared memory segment|/dev/shm/nccl",
        Blame.PROGRAM,
        "NCCL found no room in /dev/shm: in a container set container.shm; elsewhere make /dev/shm larger on that "
        "node, or give the job env: {NCCL_SHM_DISABLE: '1'}, which is slower",
    ),
    GpuError(
        r"ibv_(reg_\w+|create_(cq|qp)) failed.{0,40}(Cannot allocate memory|errno 12)",
        Blame.PROGRAM,
        "InfiniBand could not lock memory: raise the limit of locked memory on that node to unlimited (ulimit -l; "
        "memlock in /etc/security/limits.conf, LimitMEMLOCK of sshd or slurmd)",
    ),
    GpuError(
        r"Duplicate GPU detected|Multiple Ranks are using the same GPU",
        Blame.PROGRAM,
        "two ranks of a node took the same GPU: give each its own, "
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), or start no more ranks than the node has GPUs",
    ),
    GpuError(
        r"Mismatched NCCL version|NCCL library is too old|NCCL version mismatch",
        Blame.PROGRAM,
        "the nodes have different versions of NCCL: give all of them the same torch (environment.lock in the job)",
    ),
    GpuError(
        r"(Bootstrap|NET/Socket) ?: [Nn]o (usable listening |socket )?interface found",
        Blame.PROGRAM,
        "NCCL found no network interface by its name: name one in the profile (interface), or take "
        "NCCL_SOCKET_IFNAME out of the environment",
    ),
    GpuError(
        r"NET/IB ?: Got (completion|async)|IBV_WC_\w+_ERR|ibv_modify_qp failed|NET/Socket ?: socket progress error"
        r"|socket(Progress|Poll|Start|Try|Finalize)\w*: "
        r"|ncclSystemError.{0,400}Connect(ion)? .{0,80}(refused|timed out)"
        r"|Call to connect .{0,80}failed",
        Blame.NETWORK,
        "the network between the nodes failed under NCCL: look at its links and counters (ibstat, ip -s link), or "
        "name another interface in the profile",
    ),
    GpuError(
        r"ncclRemoteError|remote process exited or there was a network error",
        Blame.NETWORK,
        "a peer went away, or the network to it: look at the other ranks' logs (orch logs RUN --all)",
    ),
    GpuError(
        r"uncorrectable ECC error",
        Blame.MACHINE,
        "a GPU's memory is broken: reset that GPU, or have it replaced (nvidia-smi -q -d ECC,ROW_REMAPPER shows which)",
    ),
    GpuError(
        r"uncorrectable NVLink error|over nvlink or a hardware error",
        Blame.MACHINE,
        "a link between GPUs is broken: nvidia-smi nvlink -e shows which; reset the GPUs of that host",
    ),
    GpuError(
        r"(CUDA error|Cuda failure[ \d]*): ?'?unknown error|Cuda failure (999 )?'unknown error'|fallen off the bus"
        r"|GPU is lost|CUDA error: hardware stack error",
        Blame.MACHINE,
        "a GPU of that host failed: its Xid is in dmesg; reset or power-cycle the host",
    ),
    GpuError(
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        Blame.MACHINE,
        "another program has that GPU for itself (nvidia-smi -q -d COMPUTE,PIDS), or the GPU is broken",
    ),
    GpuError(
        r"(CUDA error|Error 802|Cuda failure[ \d]*): ?'?system not yet initialized",
        Blame.MACHINE,
        "the fabric manager does not run on that host: systemctl status nvidia-fabricmanager, of the driver's version",
    ),
    GpuError(
        r"device-side assert",
        Blame.PROGRAM,
        "a kernel refused a value, mostly an index out of range (a label as large as the number of classes): run "
        "it on a CPU, or with env: {CUDA_LAUNCH_BLOCKING: '1'}, which shows the line",
    ),
    GpuError(
        r"no kernel image is available",
        Blame.PROGRAM,
        "this torch, or an extension, was not built for that GPU: torch.cuda.get_arch_list() against nvidia-smi "
        "--query-gpu=name,compute_cap",
    ),
    GpuError(
        r"driver version is insufficient|driver on your system is too old|forward compatibility was attempted"
        r"|unsupported toolchain",
        Blame.PROGRAM,
        "that node's driver is too old for this torch: update the driver, or install a torch for an older CUDA",
    ),
    GpuError(
        r"Found no NVIDIA driver",
        Blame.PROGRAM,
        "that machine has no NVIDIA driver, or its container gets none: let the script take the CPU there, or run it "
        "where nvidia-smi shows a GPU",
    ),
    GpuError(
        r"No CUDA GPUs are available|ProcessGroupNCCL is only supported with GPUs, no GPUs found",
        Blame.PROGRAM,
        "torch sees no GPU on that machine: it has no NVIDIA driver, or its container gets none, or "
        "CUDA_VISIBLE_DEVICES is empty; run it where nvidia-smi shows a GPU, or let the script take the CPU and the "
        "backend gloo",
    ),
    GpuError(
        r"Torch not compiled with CUDA enabled",
        Blame.PROGRAM,
        "that torch was built for CPUs: install a build with CUDA for that python, or let the script take the CPU",
    ),
    GpuError(
        r"no CUDA-capable device|invalid device ordinal",
        Blame.PROGRAM,
        "the rank chose a GPU number that does not exist: use LOCAL_RANK, and no more ranks than nvidia-smi "
        "-L and CUDA_VISIBLE_DEVICES show",
    ),
    GpuError(
        r"Cannot re-initialize CUDA in forked subprocess|CUDA error: initialization error",
        Blame.PROGRAM,
        "CUDA was used before a fork: for a DataLoader multiprocessing_context='spawn'; else launcher: exec, and "
        "no CUDA while modules are imported",
    ),
    GpuError(
        r"CU(BLAS|DNN|SOLVER|SPARSE)_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|(CUDA|HIP)( error:)? out of memory"
        r"|torch\.(cuda\.)?OutOfMemoryError|Cuda failure \d* ?'out of memory'|NVML_SUCCESS == r INTERNAL ASSERT",
        Blame.PROGRAM,
        "the GPU ran out of memory: lower global_batch or accumulate gradients, use precision bf16 or activation "
        "checkpointing, shard (strategy fsdp), or env: {PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'}",
    ),
    GpuError(
        r"illegal memory access|misaligned address|illegal instruction was|unspecified launch failure",
        Blame.PROGRAM,
        "a kernel went wrong: env: {CUDA_LAUNCH_BLOCKING: '1'} shows the line, compute-sanitizer the kernel; "
        "always on the same host, it is the GPU",
    ),
    GpuError(
        r"Watchdog caught collective operation timeout",
        Blame.PROGRAM,
        "a collective timed out: one rank was slow or gone; orch why and the other ranks' logs (orch logs RUN "
        "--all) tell which",
    ),
)
_QUOTES_NCCL = re.compile(r"(torch\.distributed\.)?Dist\w*Error")


def gpu_error_in(text: str) -> GpuError | None:
    """Return the kind of failure for this text, or None if it is neither CUDA's nor NCCL's."""
    return next((each for each in _ERRORS if re.search(each.pattern, text, re.DOTALL)), None)


def gpu_error_of(exit_report: Mapping[str, Any]) -> GpuError | None:
    """Return the kind of failure that ended a rank, from its error, and from its last lines if they belong to it."""
    error = exit_report.get("error")
    error = error if isinstance(error, Mapping) else {}
    if error.get("type") in ("Hang", "LauncherLost"):
        return None
    words = f"{error.get('type')}: {error.get('message')}" if error else ""
    if not error or _QUOTES_NCCL.fullmatch(str(error.get("type"))):  # NCCL explains itself in lines of their own
        words = "\n".join([words, *map(str, _lines(exit_report.get("tail")))])
    return gpu_error_in(words)


def _lines(tail: Any) -> Iterable[Any]:
    return tail if isinstance(tail, (list, tuple)) else ()
