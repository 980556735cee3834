"""The argv that starts a launcher inside its container, for every runtime; pure.

Every folder keeps its path inside, so that nothing the ranks are told has to be translated. The network is always the
node's own: what the agents have found out about the ways between the nodes holds for the ranks too.
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

ENGINES = ("docker", "podman")  # these have containers that somebody has to end; of the others only processes stay
RUN, NODE, ATTEMPT, DIR, OWNER = (
    f"io.github.orch.{name}" for name in ("run", "node", "attempt", "dir", "uid")
)  # fmt: skip
STACK_BYTES = 67_108_864
# What the interpreter or the C library reads before the launcher can: it alone goes through argv, where all may see it.
EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_TUNABLES", "LANG", "LC_", "TZ")
# What a site sets for its network and scheduler; the rest of a node's variables describe folders that an image lacks.
SITE = (
    "SLURM_", "NCCL_", "GLOO_", "UCX_", "FI_", "MLX5_", "NVIDIA_", "CUDA_", "PYTORCH_", "TORCH_NCCL_", "TORCH_FR_",
)  # fmt: skip
NOT_OF_SITE = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_CACHE_PATH", VISIBLE)
SCRATCH = "/tmp"  # noqa: S108 (the container's own: it goes with the container)
SHARES_TMP = ("apptainer",)  # with the node, and so with all its users, unless told otherwise


@dataclass(frozen=True)
class NodeResources:
    """What only the node knows: who asks, what the ranks may use, and how the engine is set up."""

    user: str = "UID:GID"
    name: str = "USER"
    groups: tuple[int, ...] = ()
    rootless: bool = False
    gpus: tuple[str, ...] = ()  # numbers as the node counts them, or UUIDs
    cpuset: str | None = None
    cpus: int | None = None
    memory: int | None = None
    infiniband: bool = False
    devices: tuple[str, ...] = ()  # what else of /dev a fast network needs
    files: tuple[str, ...] = ()  # the site's configuration of NCCL
    memlock: bool = True  # may the engine lift the limit on locked memory, which InfiniBand needs?
    limits: tuple[str, ...] = ()  # this process's own, where podman would raise them and may not
    host: str = "HOST"


def container_name(run_id: str, node_rank: int, attempt: int) -> str:
    """Return the name of the container in which a node's launcher was started for this attempt."""
    return f"orch-{run_id}-{node_rank}-{attempt}"


def labels(task: NodeTask, attempt: int, uid: int | str) -> dict[str, str]:
    """Return the labels by which a container of ours is found."""
    return {
        RUN: task.run_id, NODE: str(task.node_rank), ATTEMPT: str(attempt), DIR: task.run_dir, OWNER: str(uid)
    }  # fmt: skip


def argv(task: NodeTask, resources: NodeResources, attempt: int, image: str, *, cidfile: str) -> list[str]:
    """Return what starts the launcher in the task's container; `image` is its name, or its id on this node."""
    assert task.container is not None
    return _START[task.container.runtime](task, task.container, resources, attempt, image, cidfile)


def replaying(start: list[str], order: str, *, terminal: bool) -> list[str]:
    """Return the argv for one rank at a terminal (or without one) instead of a launcher."""
    words = [*start[:-1], "replay", order]
    if terminal and words[0] in ENGINES:
        words.insert(words.index("--interactive"), "--tty")
    return words


def written_inside(task: NodeTask, attempt: int) -> list[str]:
    """Return the folders of the node that the ranks of one attempt write into, and rank 0's file of metrics."""
    own = [attempt_folder(node_folder(task.run_dir, task.node_rank), attempt), task.checkpoint_dir]
    own += [compiled_folder(task)]
    own += [output_folder(task.run_dir), task.code_dir]  # which is the working folder: ordinary scripts write there
    return [*own, *([metrics_file(task.run_dir)] if task.node_rank == 0 else [])]


def mounts(task: NodeTask, attempt: int) -> list[Mount]:
    """Return what the container sees of the node, and nothing else of the run's folder.

    That holds what the agents act on: their records, and the archive that this node runs itself.
    """
    assert task.container is not None
    read = [archive_file(task.run_dir), *([task.inputs_dir] if task.inputs else [])]
    if copies_checkpoints(task) and task.node_rank == 0:
        read.append(os.path.dirname(second_copy_file(task.run_dir)))
    if _is_within(task.resume, given_folder(task.run_dir)):  # it may come while the container runs
        read.append(given_folder(task.run_dir))
    elif task.resume.startswith("/") and not _is_within(task.resume, task.checkpoint_dir):
        read.append(task.resume)
    # This mount is the first, because the others lie in it. It keeps files that ranks write beside or above their
    # # working folder when the container ends.
    own = [Mount(container_view(task.run_dir), os.path.dirname(task.run_dir))]
    own += [Mount(path, path, read_only=True) for path in read]
    own += [Mount(path, path) for path in written_inside(task, attempt)]
    own += [Mount(scratch_folder(task), SCRATCH)] if task.container.runtime in SHARES_TMP else []
    return [*own, *task.container.mounts]


def _mounts(task: NodeTask, resources: NodeResources, attempt: int) -> list[Mount]:
    asked = mounts(task, attempt)
    targets = {mount.target for mount in asked}
    return [*asked, *(Mount(path, path, read_only=True) for path in resources.files if path not in targets)]


def places_in_view(task: NodeTask, attempt: int) -> list[tuple[str, str]]:
    """Return (source, path on the node inside the container's view) of each mount that lies in that view."""
    above, view = os.path.dirname(task.run_dir), container_view(task.run_dir)
    inside = [mount for mount in mounts(task, attempt) if mount.target.startswith(f"{above}/")]
    return [(mount.source, f"{view}{mount.target[len(above) :]}") for mount in inside]


def scratch_folder(task: NodeTask) -> str:
    """Return the folder of the run that is the container's /tmp, where it would be the node's; it goes with it."""
    return f"{node_folder(task.run_dir, task.node_rank)}/scratch"


def compiled_folder(task: NodeTask) -> str:
    """Return the folder of what a run compiles in containers on this node: one attempt's serves the next."""
    return f"{node_folder(task.run_dir, task.node_rank)}/compiled"


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def start_environment(task: NodeTask, resources: NodeResources) -> dict[str, str]:
    """Return the variables that the interpreter needs as it starts; a uid without a passwd entry needs a home too."""
    name = resources.name
    own = {"HOME": SCRATCH, "TMPDIR": SCRATCH, "USER": name, "LOGNAME": name, "PYTHONUNBUFFERED": "1"}
    asked = {name: value for name, value in task.env.items() if name in own or name.startswith(EARLY)}
    path = ":".join([archive_file(task.run_dir), *filter(None, [task.env.get("PYTHONPATH")])])
    found = {**own, **asked, "PYTHONPATH": path, MARK: mark(task.run_id, task.node_rank)}
    if task.container is not None and task.container.runtime not in ENGINES:
        found.pop("HOME")  # apptainer and pyxis bring the user's own; and a comma ends a variable in their options
        return {name: value for name, value in found.items() if "," not in value}
    return found


def told(task: NodeTask, resources: NodeResources, environ: Mapping[str, str], threads: int) -> NodeTask:
    """Return the task as the launcher inside is told it on stdin: with every other variable that its ranks need."""
    compiled = compiled_folder(task)
    caches = {
        "XDG_CACHE_HOME": f"{SCRATCH}/.cache", "TORCHINDUCTOR_CACHE_DIR": f"{compiled}/inductor",
        "TRITON_CACHE_DIR": f"{compiled}/triton", "CUDA_CACHE_PATH": f"{compiled}/cuda",
    }  # fmt: skip
    site = {name: value for name, value in environ.items() if name.startswith(SITE) and name not in NOT_OF_SITE}
    early = start_environment(task, resources)
    env = {**caches, **site, "OMP_NUM_THREADS": str(threads), **task.env}
    if task.container is not None and task.container.runtime not in ENGINES:
        # These give the ranks all GPUs of the node: which are theirs is the variable's word alone.
        if VISIBLE in environ and VISIBLE not in env:
            env[VISIBLE] = environ[VISIBLE]
    elif resources.gpus:
        # The engine gives the ranks only these, and the driver counts those that it sees from 0.
        named = [gpu if gpu.startswith(("GPU-", "MIG-")) else str(index) for index, gpu in enumerate(resources.gpus)]
        env[VISIBLE] = ",".join(named)
    return replace(task, env={name: value for name, value in env.items() if name not in early})


def _program(task: NodeTask) -> list[str]:
    return [archive_file(task.run_dir), "launcher"]


def _engine(
    task: NodeTask, box: Container, resources: NodeResources, attempt: int, image: str, cidfile: str
) -> list[str]:
    """Return the argv of docker and podman, whose command lines are the same but for users and GPUs."""
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
    # The image's own entrypoint may print, or start something else.
    return [*words, "--workdir", task.code_dir, "--entrypoint", task.python, image, *_program(task)]


def _user(box: Container, resources: NodeResources) -> list[str]:
    """Return the options for the caller's own uid, which then owns what the ranks write; rootless, that is root."""
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
    """Return a mount as `--mount` reads it: CSV, which does not make up a source that is missing, as `-v` does."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    fields += ["readonly"] if mount.read_only else []
    return ",".join(_csv(field) for field in fields)


def _csv(field: str) -> str:
    quoted = field.replace('"', '""')
    return f'"{quoted}"' if set(field) & set(',"') else field


def _apptainer(
    task: NodeTask, box: Container, resources: NodeResources, attempt: int, image: str, cidfile: str
) -> list[str]:
    """Return the argv of apptainer, which is the user's own process, in the user's home, and ends with its caller."""
    words = ["apptainer", "exec", "--cleanenv", "--no-mount", "tmp", "--pwd", task.code_dir, *_gpus(box, resources)]
    for mount in _mounts(task, resources, attempt):
        words += ["--bind", f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"]
    for name, value in start_environment(task, resources).items():
        words += ["--env", f"{name}={value}"]
    file = "://" in image or image.startswith(("/", "./", "~")) or image.endswith(".sif")
    return [*words, image if file else f"docker://{image}", task.python, *_program(task)]


def _pyxis(
    task: NodeTask, box: Container, resources: NodeResources, attempt: int, image: str, cidfile: str
) -> list[str]:
    """Return the argv of a step of its own in the agent's allocation, on its node; the agent itself stays outside."""
    binds = [
        f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
        for mount in _mounts(task, resources, attempt)
    ]
    exported = ",".join(["ALL", *(f"{name}={value}" for name, value in start_environment(task, resources).items())])
    return [
        "srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={resources.host}", "--mem=0", "--unbuffered",
        "--kill-on-bad-exit=1", *([f"--cpus-per-task={resources.cpus}"] if resources.cpus else []),
        f"--export={exported}",
        f"--container-image={_enroot(image)}", f"--container-mounts={','.join(binds)}",
        f"--container-workdir={task.code_dir}", "--no-container-entrypoint", task.python, *_program(task),
    ]  # fmt: skip


def _enroot(image: str) -> str:
    """Return the image as pyxis writes it: REGISTRY#NAME:TAG; a file stays what it is."""
    registry, slash, name = image.partition("/")
    is_registry = slash and registry and ("." in registry or ":" in registry or registry == "localhost")
    if not is_registry or "#" in image or image.startswith((".", "/")) or image.endswith(".sqsh"):
        return image
    return f"{registry}#{name}"


_START: dict[str, Callable[..., list[str]]] = {
    "docker": _engine, "podman": _engine, "apptainer": _apptainer, "pyxis": _pyxis
}  # fmt: skip


def odd_image(images: Mapping[int, str]) -> int | None:
    """Return a node whose image differs from that of most; None where all have the same, or none can be told."""
    known = {node: image for node, image in images.items() if image}
    counts = Counter(known.values())
    if len(counts) < 2:
        return None
    usual = max(counts, key=lambda image: (counts[image], image == known[min(known)]))
    return min(node for node, image in known.items() if image != usual)


def short(image_id: str) -> str:
    """Return an image's id as people compare it."""
    return image_id.rpartition(":")[2][:12]
