"""The words of CUDA, torch and NCCL, as their sources have them: what they draw on, and what is advised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.outcome.rules import cause_of, gpu_error_of, hint_for, is_machines_fault
from orchestrator.protocol.rank_reports import Culprit, RankError

NOTE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
SYSTEM = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclSystemError: System call (e.g. socket, malloc) or external "
    "library call failed or device error. \nLast error:\n"
)
USAGE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for "
    "details), NCCL version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\n"
)
REMOTE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, remote process exited or there was "
    "a network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error or a remote "
    "process exiting prematurely.\nLast error:\n"
)
CUDA, NCCL = "torch.AcceleratorError", "torch.distributed.DistBackendError"

# Type, message, cause, is the host avoided, a word of the advice.
TABLE = [
    (CUDA, f"CUDA error: uncorrectable ECC error encountered{NOTE}", "infra", True, "ROW_REMAPPER"),
    ("RuntimeError", "CUDA error: uncorrectable NVLink error detected during the execution", "infra", True, "nvlink"),
    (CUDA, "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error", "infra", True, "nvlink"),
    (CUDA, f"CUDA error: unknown error{NOTE}", "infra", True, "Xid"),
    (CUDA, "CUDA error: hardware stack error", "infra", True, "Xid"),
    (NCCL, f"{SYSTEM}Cuda failure 999 'unknown error'", "infra", True, "Xid"),
    (CUDA, "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "infra", True, "COMPUTE"),
    ("RuntimeError", "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
     "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized", "infra", True,
     "fabricmanager"),
    (NCCL, "NCCL error in: NCCLUtils.cpp:93, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version "
     "2.29.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to bind NVLink SHARP (NVLS) "
     "Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.",
     "infra", True, "nvidia-imex"),
    (NCCL, f"{SYSTEM}Cuda failure 401 'the operation cannot be performed in the present state'", "infra", True,
     "fabricmanager"),
    ("RuntimeError", "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
     "NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda "
     "driver combination", "infra", True, "reboot"),
    ("pynvml.NVMLError_LibRmVersionMismatch", "RM has detected an NVML/RM version mismatch.", "infra", True, "reboot"),
    ("subprocess.CalledProcessError", "Failed to initialize NVML: Driver/library version mismatch", "infra", True,
     "reboot"),
    ("pynvml.NVMLError_Unknown", "Unknown Error", "infra", False, "gpu_flag: cdi"),
    ("RuntimeError", "Failed to initialize NVML: Unknown Error", "infra", False, "daemon-reload"),
    ("RuntimeError", "pidfd_getfd: Operation not permitted", "user_error", False, "cap_add: [SYS_PTRACE]"),
    (NCCL, f"{SYSTEM}socketStartConnect: Connect to 10.0.0.2<41765> failed : Software caused connection abort", "infra",
     False, "network"),
    (NCCL, f"{SYSTEM}Call to connect to 10.0.0.2<41765> failed: Connection timed out", "infra", False, "network"),
    (NCCL, f"{REMOTE}NET/IB: Got completion from peer 10.0.0.2<4791> with status=IBV_WC_RETRY_EXC_ERR(12)", "infra",
     False, "network"),
    (NCCL, f"{REMOTE}socketProgress: Connection closed by remote peer n2<41765>", "infra", False, "network"),
    (NCCL, f"{SYSTEM}Error while creating shared memory segment /dev/shm/nccl-EoOvZr (size 7340384), error: No space "
     "left on device (28)", "user_error", False, "/dev/shm"),
    (NCCL, f"{SYSTEM}Call to ibv_reg_mr failed with error Cannot allocate memory", "user_error", False, "ulimit -l"),
    (NCCL, f"{USAGE}Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", "user_error", False,
     "LOCAL_RANK"),
    (NCCL, f"{USAGE}Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
     "configuration.", "user_error", False, "LOCAL_RANK"),
    (NCCL, f"{USAGE}Mismatched NCCL version detected : rank 0 version 22705 rank 1 version 22807", "user_error", False,
     "same torch"),
    (NCCL, f"{SYSTEM}Bootstrap : no socket interface found", "user_error", False, "interface"),
    (CUDA, f"CUDA error: device-side assert triggered{NOTE}", "user_error", False, "classes"),
    (CUDA, "CUDA error: no kernel image is available for execution on the device", "user_error", False, "arch_list"),
    ("RuntimeError", "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver",
     "user_error", False, "driver is too old"),
    (CUDA, "CUDA error: CUDA driver version is insufficient for CUDA runtime version", "user_error", False,
     "driver is too old"),
    ("RuntimeError", "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use "
     "the 'spawn' start method", "user_error", False, "spawn"),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "user_error", False,
     "out of memory"),
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 "
     "GiB of which 1.12 GiB is free.", "user_error", False, "expandable_segments"),
    (CUDA, f"CUDA error: invalid device ordinal{NOTE}", "user_error", False, "LOCAL_RANK"),
    ("RuntimeError", "No CUDA GPUs are available", "user_error", False, "sees no GPU"),
    ("ValueError", "ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "user_error", False,
     "no NVIDIA driver"),
    ("RuntimeError", "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "user_error",
     False, "no NVIDIA driver"),
    ("AssertionError", "Torch not compiled with CUDA enabled", "user_error", False, "built for CPUs"),
    (CUDA, f"CUDA error: an illegal memory access was encountered{NOTE}", "user_error", False, "compute-sanitizer"),
    (CUDA, "CUDA error: unspecified launch failure", "user_error", False, "compute-sanitizer"),
]  # fmt: skip


def ended(kind: str | None, message: str, tail: list[str] | None = None) -> Culprit:
    return Culprit(0, 1, error=RankError(kind, message) if kind else None, tail=tuple(tail or ()))


@pytest.mark.parametrize(("kind", "message", "cause", "avoided", "advice"), TABLE)
def test_what_an_error_draws_on_and_what_helps(kind: str, message: str, cause: str, avoided: bool, advice: str) -> None:
    report = ended(kind, message)
    assert (cause_of(report), is_machines_fault(report)) == (cause, avoided)
    found = gpu_error_of(report)
    assert found is not None
    assert advice in found.hint
    assert hint_for(f"{kind} {message}") == found.hint


def test_words_that_stand_in_the_log_alone_count() -> None:
    """An exec'd rank's error is its first line; NCCL says why in those after it."""
    tail = [
        *REMOTE.splitlines(),
        "NET/IB: Got completion from peer 10.0.0.2<4791> with status=IBV_WC_RETRY_EXC_ERR(12)",
    ]
    found = gpu_error_of(ended("torch.distributed.DistBackendError", SYSTEM.splitlines()[0], tail))
    assert found is not None
    assert "ibstat" in found.hint
    assert is_machines_fault(ended(None, "", ["terminate called", "CUDA error: uncorrectable ECC error encountered"]))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ValueError", "an unknown error in row 3"),
        ("RuntimeError", "DataLoader worker (pid(s) 812) exited unexpectedly"),
        ("OSError", "[Errno 28] No space left on device"),
        ("ConnectionRefusedError", "[Errno 111] Connection refused"),
        ("requests.exceptions.ConnectTimeout", "Connection to hub.example timed out"),
        ("KeyError", "'socket'"),
    ],
)
def test_a_programs_own_words_are_no_gpus(kind: str, message: str) -> None:
    report = ended(kind, message, ["CUDA error: uncorrectable ECC error encountered"])
    assert gpu_error_of(report) is None
    assert cause_of(report) == "user_error"


@pytest.mark.parametrize("line", ["the printer is busy or unavailable", "Connection refused", "unknown error", "GPU 0"])
def test_a_programs_last_lines_are_no_gpus(line: str) -> None:
    report = ended(None, "", ["NCCL version 2.27.5", line])
    assert gpu_error_of(report) is None


def test_a_hang_stays_a_hang() -> None:
    report = replace(ended("Hang", "rank 1 has stood still", ["/dev/shm/nccl"]), hang=True)
    assert gpu_error_of(report) is None
    assert cause_of(report) == "infra"
