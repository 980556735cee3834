"""Decides from the machines' reports whether their GPUs are fit to train.

Machines without GPUs get no results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from orchestrator.backends.base import Check, CheckResult, Level
from orchestrator.errors import BackendError
from orchestrator.protocol.places.devices import VISIBLE, Device, named_by
from orchestrator.protocol.quantities import size
from orchestrator.protocol.task import NodeTask
from orchestrator.transport.machine import Machine

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
CHECKS: Final = ("gpus", "driver", "cuda", "gpu health", "gpu use", "topology", "nccl", "infiniband", "ipc")
TRY_SECONDS: Final = 60.0  # torch is imported, and a context is made on each card
GIB: Final = 1 << 30
SLOWED: Final = ("hardware slowdown", "software thermal", "hardware thermal", "power brake")
NVML_HINT: Final = (
    "after an upgrade of the driver, reboot that machine, or load the new kernel modules, until nvidia-smi works "
    "there; with `backend: gloo` in the profile, a run uses the CPUs"
)
Rows = dict[str, CheckResult]


def rows_of(said: Mapping[str, Any], tried: Mapping[str, Any] | str) -> Rows:
    """Return the check results of one machine from its report, `said`. `tried` has the results of a test in its
    training interpreter, or the reason why there are none.
    """
    gpus: Sequence[Mapping[str, Any]] = said["gpus"]
    rows = {
        "gpus": _cards(gpus),
        "driver": _driver(said, tried),
        "cuda": _kernels(gpus, tried),
        "gpu health": _health(gpus),
        "gpu use": _use(gpus, said["used"]),
        "topology": _ways(gpus, str(said["topology"]), tried),
        "infiniband": _infiniband(said),
        "ipc": _shared_memory(said),
    }
    if isinstance(tried, Mapping) and tried.get("nccl"):
        rows["nccl"] = CheckResult(OK, str(tried["nccl"]))
    return {what: row for what, row in rows.items() if row is not None}


def ask(machine: Machine, python: str | None, setup: Sequence[str]) -> Rows:
    """Query the machine, and return its check results. `python` is its training interpreter after the setup lines; None
    if a container image has the interpreter.
    """
    try:
        said = machine.call("examine_gpus")[0]
    except BackendError as error:
        return {"gpus": CheckResult(FAIL, error.message, error.hint)}
    if said["nvml_problem"]:
        return {"driver": CheckResult(FAIL, f"NVML can't be initialized: {said['nvml_problem']}", NVML_HINT)}
    if not said["gpus"]:
        hint = (
            "install NVIDIA's complete driver on that host; in a container, add `utility` to NVIDIA_DRIVER_CAPABILITIES"
        )
        return {"gpus": CheckResult(WARN, "neither libnvidia-ml.so.1 nor nvidia-smi reports the GPUs", hint)}
    if python is None:
        return rows_of(said, {})
    try:
        tried = machine.call(
            "try_gpus", python=python, setup=list(setup), seconds=TRY_SECONDS, timeout=TRY_SECONDS + 10
        )[0]
    except BackendError as error:
        return rows_of(said, error.message)
    return rows_of(said, tried)


def check_nvml(task: NodeTask, name: str, facts: Mapping[str, Any]) -> None:
    """Raise BackendError if the task would use a machine's GPUs, and NVML can't be initialized there. CUDA can't be
    initialized either then, for example after an upgrade of the driver.
    """
    asked, devices = task.env.get(VISIBLE), [Device(**each) for each in facts["devices"]]
    usable = named_by(facts["visible"] if asked is None else asked, devices) if task.uses_gpus else []
    if usable and (problem := facts["nvml_problem"]):
        raise BackendError(
            f"{name}: it has {len(devices)} GPU{'s' * (len(devices) > 1)}, but NVML can't be initialized: {problem}",
            NVML_HINT,
        )


def as_checks(whats: Iterable[str], by_node: Mapping[int, Rows], names: Mapping[int, str]) -> list[Check]:
    """Return the results of all machines as checks, in the order of their names in `whats`. A missing result is shown
    as unknown.
    """
    unknown, rows = CheckResult(Level.UNKNOWN), [(node, what) for what in whats for node in sorted(names)]
    return [Check(node, names[node], what, *by_node.get(node, {}).get(what, unknown)) for node, what in rows]


def compare(by_node: Mapping[int, Rows]) -> None:
    """Compare each machine's NCCL and driver versions with those of the majority."""
    for what, level, why in (
        ("nccl", FAIL, "ranks can't join"),
        ("driver", WARN, "some failures hit one machine only"),
    ):
        known = {node: rows[what].value for node, rows in by_node.items() if what in rows and rows[what].level == OK}
        usual = Counter(known.values()).most_common(1)
        for node, value in known.items():
            if value != usual[0][0]:
                hint = f"most hosts have {usual[0][0]}, and if versions differ, {why}: install the same version"
                by_node[node][what] = CheckResult(level, value, hint)


def _cards(gpus: Sequence[Mapping[str, Any]]) -> CheckResult:
    names = Counter(each["name"] or "?" for each in gpus)
    parts = sum(len(each["instances"]) for each in gpus if each["mig"])
    value = ", ".join(f"{count} {name}" for name, count in names.items())
    empty = [each["index"] for each in gpus if each["mig"] and not each["instances"]]
    closed = [each["index"] for each in gpus if each["compute_mode"] == "prohibited"]
    if empty:
        return CheckResult(
            FAIL,
            f"{value}; MIG is on, but there is no instance on GPU {_listed(empty)}",
            "create instances with nvidia-smi mig -cgi, or turn MIG off with nvidia-smi -mig 0",
        )
    if closed:
        return CheckResult(
            FAIL, f"{value}; GPU {_listed(closed)} does not allow computing", "allow computing: nvidia-smi -c DEFAULT"
        )
    return CheckResult(OK, f"{value}{f'; {parts} instances of MIG' if parts else ''}")


def _driver(said: Mapping[str, Any], tried: Mapping[str, Any] | str) -> CheckResult:
    value = f"{said['driver'] or 'of unknown version'}"
    if isinstance(tried, str) or not tried.get("cuda"):
        return CheckResult(OK, value)
    needs, runs = str(tried["cuda"]), said["cuda"]
    if runs and int(needs.partition(".")[0]) > runs[0]:
        hint = f"install a driver for CUDA {needs}, or a torch for CUDA {runs[0]}"
        return CheckResult(FAIL, f"driver {value} supports CUDA {runs[0]}.{runs[1]}, but torch needs {needs}", hint)
    return CheckResult(OK, f"{value}, which supports torch's CUDA {needs}")


def _kernels(gpus: Sequence[Mapping[str, Any]], tried: Mapping[str, Any] | str) -> CheckResult | None:
    if not tried:
        return None
    if isinstance(tried, str):
        return CheckResult(FAIL, tried, "see the check `training` of this host")
    if tried.get("cuda") is None:
        return CheckResult(
            FAIL, f"torch {tried.get('torch')} is a build for CPUs only", "install a torch with CUDA on that host"
        )
    answers: Sequence[str] = tried["gpus"]
    broken = [f"GPU {number}: {said}" for number, said in enumerate(answers) if said]
    if broken:
        return CheckResult(
            FAIL,
            "; ".join(broken),
            "look for GPU errors on that host: dmesg | grep -i -e xid -e nvrm, and nvidia-smi -q",
        )
    whole = sum(not each["mig"] for each in gpus)
    if len(answers) < (whole or 1):
        value = f"torch sees {len(answers)} of {len(gpus)} GPUs"
        return CheckResult(
            FAIL, value, "check CUDA_VISIBLE_DEVICES in the login shell, and the fabric manager (nvidia-smi -q)"
        )
    return CheckResult(OK, f"a CUDA kernel ran on {len(answers)} of {len(answers)} GPUs")


def _health(gpus: Sequence[Mapping[str, Any]]) -> CheckResult:
    worn = [f"GPU {each['index']} has no spare rows left" for each in gpus if each["remap_failed"]]
    wrong = [
        f"GPU {each['index']}: {each['ecc_volatile']} uncorrectable errors" for each in gpus if each["ecc_volatile"]
    ]
    if worn or wrong:
        return CheckResult(
            FAIL,
            "; ".join([*worn, *wrong]),
            "remove the host from the profile; then reset its GPU (nvidia-smi -r), or have the GPU replaced",
        )
    pending = [each["index"] for each in gpus if each["pending_retirement"]]
    if pending:
        return CheckResult(
            WARN,
            f"GPU {_listed(pending)} has faulty memory that its next reset takes out of use",
            "reset the GPU when it is idle: nvidia-smi -r",
        )
    slow = {each["index"]: [why for why in each["throttle_reasons"] or () if why in SLOWED] for each in gpus}
    told = [f"GPU {index}: {', '.join(whys)}" for index, whys in slow.items() if whys]
    if told:
        return CheckResult(WARN, "; ".join(told), "check the GPU's cooling and power: its clocks are reduced")
    before = sum(each["ecc_aggregate"] or 0 for each in gpus)
    return CheckResult(
        OK, f"no errors{f' now, {before} uncorrectable errors since the GPUs were made' if before else ''}"
    )


def _use(gpus: Sequence[Mapping[str, Any]], used: Mapping[str, Mapping[str, Any]]) -> CheckResult:
    names = {part["uuid"]: each["index"] for each in gpus for part in (each, *each["instances"])}
    told = []
    for uuid, each in used.items():
        told.append(f"GPU {names.get(uuid, uuid)}: {each['program']}, of {each['user'] or 'another user'}")
    if told:
        return CheckResult(
            WARN, "; ".join(told), "runs that need this GPU wait; orch nodes shows whether a run of orch holds it"
        )
    return CheckResult(OK, "no program uses the GPUs")


def _ways(gpus: Sequence[Mapping[str, Any]], topology: str, tried: Mapping[str, Any] | str) -> CheckResult | None:
    if len(gpus) < 2:
        return None
    copies = tried.get("copies", ()) if isinstance(tried, Mapping) else ()
    bad = [f"GPU {each['one']} to {each['other']}: {each['said']}" for each in copies if each["said"]]
    if bad:
        hint = (
            "NCCL_P2P_DISABLE=1 in the profile's `env` avoids such copies; the usual causes are PCIe ACS and the IOMMU"
        )
        return CheckResult(FAIL, "; ".join(bad), hint)
    kinds = Counter(_pairs(topology))
    ways = ", ".join(f"{count} pairs {kind}" for kind, count in kinds.most_common())
    direct = sum(each["direct"] for each in copies)
    copied = f"{direct} of {len(copies)} neighbours copy directly" if copies else ""
    return CheckResult(OK, "; ".join(filter(None, [ways, copied])) or "unknown")


def _pairs(topology: str) -> list[str]:
    """Return the link between each pair of GPUs from the matrix of `nvidia-smi topo -m`: NV18, PIX, SYS, ..."""
    found = []
    for line in topology.splitlines():
        words = line.split()
        if words and words[0].startswith("GPU") and words[0][3:].isdigit():
            found += [word for word in words[1 : int(words[0][3:]) + 1] if word != "X"]
    return found


def _infiniband(said: Mapping[str, Any]) -> CheckResult | None:
    ports: Sequence[Mapping[str, Any]] = said["hcas"]
    if not ports:
        return None
    active = [each for each in ports if each["state"] == "ACTIVE"]
    rate = f", {active[0]['rate']}" if active else ""
    value = f"{len(active)} of {len(ports)} ports active{rate}"
    limit = said["memlock"]
    if limit is not None and limit < GIB:
        hint = "set memlock to unlimited in /etc/security/limits.d, and LimitMEMLOCK=infinity for sshd"
        return CheckResult(FAIL, f"{value}; only {size(limit)} of memory may be locked", hint)
    return CheckResult(
        OK if active else WARN, value, "" if active else "ibstat shows why no port is active; NCCL will use TCP"
    )


def _shared_memory(said: Mapping[str, Any]) -> CheckResult:
    if said["removes_ipc"]:
        hint = "set RemoveIPC=no in /etc/systemd/logind.conf, or run loginctl enable-linger"
        return CheckResult(WARN, "logind removes NCCL's shared memory when the last session ends", hint)
    return CheckResult(OK, "shared memory is kept when sessions end")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
