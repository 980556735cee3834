"""Builds the command that starts a launcher in its container, for every container runtime. The module does no I/O.

Every mounted folder has the same path inside the container, so the paths in the task are valid there too. The container
uses the node's network, so the addresses that the agents chose are valid for the ranks too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Callable

from orchestrator.node.system.processes import MARK, mark
from orchestrator.protocol.layout import (
    archive_file,
    attempt_folder,
    container_view,
    given_folder,
    metrics_file,
    node_folder,
    output_folder,
    second_copy_file,
)
from orchestrator.protocol.places.devices import VISIBLE
from orchestrator.protocol.task import Container, Mount, NodeTask, copies_checkpoints

# The containers of these runtimes must be removed explicitly. The other runtimes leave only processes.
ENGINES = ("docker", "podman")
RUN, NODE, ATTEMPT, DIR, OWNER = (
    f"io.github.orch.{name}" for name in ("run", "node", "attempt", "dir", "uid")
)  # fmt: skip
STACK_BYTES = 67_108_864
# Prefixes of variables that the interpreter or the C library reads before the launcher runs. Only these are passed in
# the argv, because other users can see an argv.
EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_TUNABLES", "LANG", "LC_", "TZ")
# Prefixes of variables about a site's network and scheduler. A container gets only these variables of its node, because
# other variables may name folders that the image does not have.
SITE = (
    "SLURM_", "NCCL_", "GLOO_", "UCX_", "FI_", "MLX5_", "NVIDIA_", "CUDA_", "PYTORCH_", "TORCH_NCCL_", "TORCH_FR_",
)  # fmt: skip
NOT_OF_SITE = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_CACHE_PATH", VISIBLE)
SCRATCH = "/tmp"  # noqa: S108 (the container's own folder, deleted with the container)
SHARES_TMP = ("apptainer",)  # runtimes whose containers use the node's /tmp by default, which all users share


@dataclass(frozen=True)
class NodeResources:
    """Facts that can be determined only on the node: the user, the resources of the ranks, and the configuration of the
    container engine.
    """

    user: str = "UID:GID"
    name: str = "USER"
    groups: tuple[int, ...] = ()
    rootless: bool = False
    gpus: tuple[str, ...] = ()  # GPUs by number, as the node counts them, or by UUID
    cpuset: str | None = None
    cpus: int | None = None
    memory: int | None = None
    infiniband: bool = False
    devices: tuple[str, ...] = ()  # device files that a fast network needs in addition
    files: tuple[str, ...] = ()  # the site's configuration files for NCCL
    memlock: bool = True  # whether the engine can lift the limit on locked memory, which InfiniBand needs
    # This process's limits, as options for podman, which without CAP_SYS_RESOURCE would fail to raise its limits.
    limits: tuple[str, ...] = ()
    host: str = "HOST"


def container_name(run_id: str, node_rank: int, attempt: int) -> str:
    """Return the name of the container in which a node's launcher runs in this attempt."""
    return f"orch-{run_id}-{node_rank}-{attempt}"


def labels(task: NodeTask, attempt: int, uid: int | str) -> dict[str, str]:
    """Return the labels by which orch finds its containers."""
    return {
        RUN: task.run_id, NODE: str(task.node_rank), ATTEMPT: str(attempt), DIR: task.run_dir, OWNER: str(uid)
    }  # fmt: skip


def argv(task: NodeTask, resources: NodeResources, attempt: int, image: str, *, cidfile: str) -> list[str]:
    """Return the command that starts the launcher in the task's container. `image` is the image's name or id."""
    assert task.container is not None
    return _START[task.container.runtime](task, task.container, resources, attempt, image, cidfile)


def replaying(start: list[str], order: str, *, terminal: bool) -> list[str]:
    """Return the command for a container that runs one rank again. `start` is the command that would start a launcher
    in this container.
    """
    words = [*start[:-1], "replay", order]
    if terminal and words[0] in ENGINES:
        words.insert(words.index("--interactive"), "--tty")
    return words


def written_inside(task: NodeTask, attempt: int) -> list[str]:
    """Return the node's folders to which an attempt's ranks write, and the path of rank 0's metrics file."""
    own = [attempt_folder(node_folder(task.run_dir, task.node_rank), attempt), task.checkpoint_dir]
    own += [compiled_folder(task)]
    # The code folder is the ranks' working folder, to which ordinary scripts write.
    own += [output_folder(task.run_dir), task.code_dir]
    return [*own, *([metrics_file(task.run_dir)] if task.node_rank == 0 else [])]


def mounts(task: NodeTask, attempt: int) -> list[Mount]:
    """Return the container's mounts. The agents' records in the run's folder are not mounted."""
    assert task.container is not None
    read = [archive_file(task.run_dir), *([task.inputs_dir] if task.inputs else [])]
    if copies_checkpoints(task) and task.node_rank == 0:
        read.append(os.path.dirname(second_copy_file(task.run_dir)))
    if _is_within(task.resume, given_folder(task.run_dir)):  # the checkpoint may arrive while the container runs
        read.append(given_folder(task.run_dir))
    elif task.resume.startswith("/") and not _is_within(task.resume, task.checkpoint_dir):
        read.append(task.resume)
    # This mount comes first, because other mounts are inside it. It keeps the files that ranks write beside or above
    # their working folder.
    own = [Mount(container_view(task.run_dir), os.path.dirname(task.run_dir))]
    own += [Mount(path, path, read_only=True) for path in read]
    own += [Mount(path, path) for path in written_inside(task, attempt)]
    own += [Mount(scratch_folder(task), SCRATCH)] if task.container.runtime in SHARES_TMP else []
    return [*own, *task.container.mounts]


def _mounts(task: NodeTask, resources: NodeResources, attempt: int) -> list[Mount]:
    """Return the container's mounts, and one more mount for each of the site's configuration files. A file is left out
    if another mount has the same path.
    """
    found = mounts(task, attempt)
    targets = {mount.target for mount in found}
    return [*found, *(Mount(path, path, read_only=True) for path in resources.files if path not in targets)]


def places_in_view(task: NodeTask, attempt: int) -> list[tuple[str, str]]:
    """Return (source, path of the mount point on the node) for each mount whose mount point is inside the container's
    view.

    The view is the folder that the container sees as the parent of the run's folder. It is mounted first, so the other
    mount points are folders in it.
    """
    above, view = os.path.dirname(task.run_dir), container_view(task.run_dir)
    inside = [mount for mount in mounts(task, attempt) if mount.target.startswith(f"{above}/")]
    return [(mount.source, f"{view}{mount.target[len(above) :]}") for mount in inside]


def scratch_folder(task: NodeTask) -> str:
    """Return the folder of the node that is mounted at /tmp in the container. Without this mount, the container would
    share the node's /tmp.

    The folder is removed when the container ends.
    """
    return f"{node_folder(task.run_dir, task.node_rank)}/scratch"


def compiled_folder(task: NodeTask) -> str:
    """Return the folder for code that ranks compile in containers on this node. Later attempts reuse the code."""
    return f"{node_folder(task.run_dir, task.node_rank)}/compiled"


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def start_environment(task: NodeTask, resources: NodeResources) -> dict[str, str]:
    """Return the variables that the launcher's interpreter needs at its start.

    They include HOME, USER and LOGNAME, because the image may have no passwd entry for the user.
    """
    name = resources.name
    own = {"HOME": SCRATCH, "TMPDIR": SCRATCH, "USER": name, "LOGNAME": name, "PYTHONUNBUFFERED": "1"}
    of_job = {name: value for name, value in task.env.items() if name in own or name.startswith(EARLY)}
    path = ":".join([archive_file(task.run_dir), *filter(None, [task.env.get("PYTHONPATH")])])
    found = {**own, **of_job, "PYTHONPATH": path, MARK: mark(task.run_id, task.node_rank)}
    if task.container is not None and task.container.runtime not in ENGINES:
        found.pop("HOME")  # apptainer and pyxis set the user's own home; in their options, a comma ends a variable
        return {name: value for name, value in found.items() if "," not in value}
    return found


def task_inside(task: NodeTask, resources: NodeResources, environ: Mapping[str, str], threads: int) -> NodeTask:
    """Return the task for the launcher in the container, with the ranks' environment variables. Variables that the
    container's command sets are left out.

    The launcher reads the task from stdin, which other users can't read.
    """
    compiled = compiled_folder(task)
    caches = {
        "XDG_CACHE_HOME": f"{SCRATCH}/.cache", "TORCHINDUCTOR_CACHE_DIR": f"{compiled}/inductor",
        "TRITON_CACHE_DIR": f"{compiled}/triton", "CUDA_CACHE_PATH": f"{compiled}/cuda",
    }  # fmt: skip
    site = {name: value for name, value in environ.items() if name.startswith(SITE) and name not in NOT_OF_SITE}
    early = start_environment(task, resources)
    env = {**caches, **site, "OMP_NUM_THREADS": str(threads), **task.env}
    if task.container is not None and task.container.runtime not in ENGINES:
        # In these runtimes the ranks see all GPUs of the node, so only this variable limits them to their GPUs.
        if VISIBLE in environ and VISIBLE not in env:
            env[VISIBLE] = environ[VISIBLE]
    elif resources.gpus:
        # The engine gives the ranks only these GPUs, and the driver numbers them from 0.
        named = [gpu if gpu.startswith(("GPU-", "MIG-")) else str(index) for index, gpu in enumerate(resources.gpus)]
        env[VISIBLE] = ",".join(named)
        task = replace(task, reserved=tuple(gpu for gpu in task.reserved if not gpu.startswith("gpu-")))
    return replace(task, env={name: value for name, value in env.items() if name not in early})


def _program(task: NodeTask) -> list[str]:
    return [archive_file(task.run_dir), "launcher"]


def _engine(
    task: NodeTask, box: Container, resources: NodeResources, attempt: int, image: str, cidfile: str
) -> list[str]:
    """Return the command for docker or podman. Their commands differ only in the options for users and GPUs."""
    words = [
        box.runtime, "run", "--rm", "--interactive", "--init", "--sig-proxy=false", "--pull", "never",
        "--log-driver", "none", "--name", container_name(task.run_id, task.node_rank, attempt), "--cidfile", cidfile,
    ]  # fmt: skip
    for name, value in labels(task, attempt, resources.user.partition(":")[0]).items():
        words += ["--label", f"{name}={value}"]
    words += ["--network", "host", *(["--ipc", "host"] if box.shm is None else ["--shm-size", str(box.shm)])]
    words += [
        "--ulimit",
        f"stack={STACK_BYTES}:{STACK_BYTES}",
        *(["--ulimit", "memlock=-1:-1"] if resources.memlock else []),
        *(word for limit in resources.limits for word in ("--ulimit", limit)),
    ]
    words += ["--security-opt", "no-new-privileges", "--security-opt", "label=disable", "--cap-drop", "ALL"]
    words += [word for name in box.cap_add for word in ("--cap-add", name)]
    words += _user(box, resources)
    words += ["--device", "/dev/infiniband"] if resources.infiniband else []
    words += [word for device in resources.devices for word in ("--device", device)]
    words += _gpus(box, resources)
    words += ["--cpuset-cpus", resources.cpuset] if resources.cpuset else []
    words += ["--cpus", str(resources.cpus)] if resources.cpus else []
    words += ["--memory", str(resources.memory)] if resources.memory else []
    words += [word for mount in _mounts(task, resources, attempt) for word in ("--mount", _bind(mount))]
    for name, value in start_environment(task, resources).items():
        words += ["--env", f"{name}={value}"]
    # The image's own entrypoint may print text or start another program.
    return [*words, "--workdir", task.code_dir, "--entrypoint", task.python, image, *_program(task)]


def _user(box: Container, resources: NodeResources) -> list[str]:
    """Return the options that make the calling user the owner of the ranks' files. In rootless docker, root in the
    container is the calling user.
    """
    groups = [word for group in resources.groups for word in ("--group-add", str(group))]
    if box.user is not None:
        return ["--user", box.user]
    if not resources.rootless:
        return ["--user", resources.user, *groups]
    return ["--user", "0:0"] if box.runtime == "docker" else ["--userns", "keep-id", "--user", resources.user]


def _gpus(box: Container, resources: NodeResources) -> list[str]:
    if not resources.gpus or box.gpu_flag == "none":
        return []
    if box.gpu_flag == "nv":
        return ["--nv"]
    if box.gpu_flag == "cdi":
        return [word for gpu in resources.gpus for word in ("--device", f"nvidia.com/gpu={gpu}")]
    return ["--gpus", f'"device={",".join(resources.gpus)}"']  # the value is read as CSV, hence the quotes


def _bind(mount: Mount) -> str:
    """Return a mount in the syntax of the option `--mount`. The option `-v` is not used, because it would create a
    missing source folder.
    """
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    fields += ["readonly"] if mount.read_only else []
    return ",".join(_csv(field) for field in fields)


def _csv(field: str) -> str:
    quoted = field.replace('"', '""')
    return f'"{quoted}"' if set(field) & set(',"') else field


def _binds(task: NodeTask, resources: NodeResources, attempt: int) -> list[str]:
    """Return the container's mounts in the syntax of apptainer and pyxis."""
    found = _mounts(task, resources, attempt)
    return [f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in found]


def _apptainer(
    task: NodeTask, box: Container, resources: NodeResources, attempt: int, image: str, cidfile: str
) -> list[str]:
    """Return the command for apptainer. Its container is a process of the user, and ends with the process that
    started it.
    """
    words = ["apptainer", "exec", "--cleanenv", "--no-mount", "tmp", "--pwd", task.code_dir, *_gpus(box, resources)]
    words += [word for bind in _binds(task, resources, attempt) for word in ("--bind", bind)]
    for name, value in start_environment(task, resources).items():
        words += ["--env", f"{name}={value}"]
    file = "://" in image or image.startswith(("/", "./", "~")) or image.endswith(".sif")
    return [*words, image if file else f"docker://{image}", task.python, *_program(task)]


def _pyxis(
    task: NodeTask, box: Container, resources: NodeResources, attempt: int, image: str, cidfile: str
) -> list[str]:
    """Return the command for pyxis, which starts a separate Slurm step in the agent's allocation, on the agent's
    node.
    """
    exported = ",".join(["ALL", *(f"{name}={value}" for name, value in start_environment(task, resources).items())])
    return [
        "srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={resources.host}", "--mem=0", "--unbuffered",
        "--kill-on-bad-exit=1", *([f"--cpus-per-task={resources.cpus}"] if resources.cpus else []),
        f"--export={exported}",
        f"--container-image={_enroot(image)}", f"--container-mounts={','.join(_binds(task, resources, attempt))}",
        f"--container-workdir={task.code_dir}", "--no-container-entrypoint", task.python, *_program(task),
    ]  # fmt: skip


def _enroot(image: str) -> str:
    """Return the image in pyxis's syntax, REGISTRY#NAME:TAG. The path of a file is returned unchanged."""
    registry, slash, name = image.partition("/")
    is_registry = slash and registry and ("." in registry or ":" in registry or registry == "localhost")
    if not is_registry or "#" in image or image.startswith((".", "/")) or image.endswith(".sqsh"):
        return image
    return f"{registry}#{name}"


_START: dict[str, Callable[..., list[str]]] = {
    "docker": _engine, "podman": _engine, "apptainer": _apptainer, "pyxis": _pyxis
}  # fmt: skip


def odd_image(images: Mapping[int, str]) -> int | None:
    """Return the first node whose image differs from the image of most nodes, or None if all known images are equal."""
    known = {node: image for node, image in images.items() if image}
    counts = Counter(known.values())
    if len(counts) < 2:
        return None
    usual = max(counts, key=lambda image: (counts[image], image == known[min(known)]))
    return min(node for node, image in known.items() if image != usual)


def short(image_id: str) -> str:
    """Return the first 12 characters of an image's id, as docker shows it."""
    return image_id.rpartition(":")[2][:12]
