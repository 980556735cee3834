"""The table of failures. Each rule recognises a kind of failure and has the party to blame, the cause (which decides
the retry budget), and a hint.

`RULES` is ordered. The first rule that applies and has a cause decides the cause. The first rule that applies and has a
hint decides the hint. So a rule may lack the cause or the hint. docs/failures.md is generated from this table.
"""

from __future__ import annotations

import re
from typing import Callable

from orchestrator.outcome.ends import HANG, LOST_LAUNCHER, is_oom, is_victim, worker_was_killed
from orchestrator.outcome.rule import NO_TERMINAL, Rule, Seen
from orchestrator.outcome.verdict import Cause, Party
from orchestrator.protocol.rank_reports import Culprit, RankEnd
from orchestrator.protocol.ranks import EXIT_NO_RETRY


def _rank(test: Callable[[RankEnd], object]) -> Callable[[Seen], bool]:
    return lambda seen: seen.exit is not None and bool(test(seen.exit))


def _culprit(test: Callable[[Culprit], object]) -> Callable[[Seen], bool]:
    return lambda seen: seen.culprit is not None and bool(test(seen.culprit))


def _code(code: int) -> Callable[[Seen], bool]:
    return _rank(lambda end: end.code == code)


def _signal(*names: str) -> Callable[[Seen], bool]:
    return _rank(lambda end: end.signal in names)


def _raised(seen: Seen) -> bool:
    """Return whether the rank itself raised an exception. Errors that orch reports for the rank (a hang, a lost
    launcher) do not count.
    """
    return seen.error_type not in (None, *_ERRORS_OF_ORCH)


def _lost_launcher(seen: Seen) -> bool:
    """Return whether a signal ended the rank because its launcher was lost."""
    return seen.error_type == LOST_LAUNCHER and seen.exit is not None and bool(seen.exit.signal)


def _says(pattern: str, hint: str) -> Rule:
    return Rule("", hint=hint, pattern=pattern)


_GPU_PATTERNS: list[str] = []  # in the order of `_GPU_ERRORS`


def _gpu(pattern: str, culprit: Party, hint: str) -> Rule:
    """Return a rule for an error of CUDA or NCCL. If the program caused the error, the rule only gives a hint, and
    later rules decide the cause.

    If the patterns of several such rules match the text, only the rule that was made first applies. The text may also
    have other messages of NCCL, such as notes on retries, which the pattern of a later rule would match.
    """
    _GPU_PATTERNS.append(pattern)

    def test(seen: Seen) -> bool:
        words = _gpu_words(seen)
        return next((each for each in _GPU_PATTERNS if re.search(each, words, re.DOTALL)), None) == pattern

    if culprit is Party.USER:
        return Rule("", Cause.NONE, culprit, hint, test)
    what = "a rank's GPU or driver fails (ECC, NVLink, Xid, no fabric manager), or the network under NCCL"
    return Rule(what, Cause.INFRA, culprit, hint, test)


def _gpu_words(seen: Seen) -> str:
    """Return the text of an error of CUDA or NCCL: the error message, and the last log lines if they explain it. Return
    "" if the rank ran out of memory or orch itself reported the error.
    """
    error, end = seen.error, seen.exit
    if end is not None and (is_oom(end) or seen.error_type in _ERRORS_OF_ORCH):
        return ""
    if end is None or (error is None and not end.tail):
        return seen.words
    words = f"{error.type}: {error.message}" if error is not None else ""
    if error is None or _QUOTES_NCCL.fullmatch(str(error.type)):  # NCCL prints the explanation as separate lines
        words = "\n".join([words, *end.tail])
    return words


def _hint_on_module(seen: Seen) -> str:
    """Return a hint on the interpreter that lacks a module, and on other interpreters that have it; "" if no module
    is missing.
    """
    missed = seen.exit.missing if seen.exit is not None else None
    if missed is None or not missed.module:
        return ""
    module, python, others = missed.module, missed.python, ", ".join(missed.others)
    which = "these interpreters there have it" if missed.has_it else "other interpreters there"
    return (
        f"{python} on {seen.culprit.host if seen.culprit is not None else '?'} has no module {module}"
        f"{f'; {which}: {others}' if others else ''}; choose one with `python` in the profile or "
        f"--set profile.python=PATH, install it ({python} -m pip install ...), or put the module into the code folder; "
        "orch doctor -p PROFILE shows each machine's interpreter"
    )


def _hint_on_worker(seen: Seen) -> str:
    is_short = seen.exit is not None and is_oom(seen.exit)
    why = "memory was short" if is_short else "the kernel does this if memory is short (dmesg shows it)"
    return (
        f"a worker process of that rank was killed; {why}: use fewer workers (num_workers) or ranks per node, a "
        "smaller batch, or more memory for the job (on Slurm: mem)"
    )


_ERRORS_OF_ORCH = (LOST_LAUNCHER, HANG)
_QUOTES_NCCL = re.compile(r"(torch\.distributed\.)?Dist\w*Error")
_HINT_HOST_MEMORY = "the host ran out of memory: use fewer ranks per node, or a smaller batch"
_HINT_KILLED = (
    "if nobody killed the process, the host ran out of memory (dmesg shows it): use fewer ranks, or a smaller batch"
)
_HINT_SHARED_MEMORY = (
    "shared memory is too small for the DataLoader: in a container, raise `container.shm`; otherwise use fewer workers"
)

# The ends that a leader, an agent, the supervisor or a scheduler reports, without an exit report of a rank. The report
# has the error message, and the hint follows from its text.
SMALL_PACKETS = Rule(
    "a path between two nodes passes small packets only (a smaller MTU on the way)", Cause.INFRA, Party.NODE,
    "give all network interfaces between the nodes the same MTU (ip link), and let firewalls pass ICMP's "
    "`fragmentation needed`",
    pattern=r"is the MTU smaller on the way",
)  # fmt: skip
PORTS_TAKEN = Rule(
    "all rendezvous ports of the agents are taken", Cause.INFRA, Party.MACHINE,
    "ask the user who holds the ports to free them, or set `ports` in the profile to a free range, such as "
    "20000-20100",
    pattern=r"rendezvous ports are taken",
)  # fmt: skip
CANT_REACH = Rule(
    "a node can't reach node 0", Cause.INFRA, Party.NODE,
    "a firewall blocks the connection, or the address belongs to another network: open the `ports` of the "
    "profile, or set `addr` and `interface` in it",
    pattern=r"can't reach (node|its neighbour)",
)  # fmt: skip
LOST = Rule(
    "an agent is killed", Cause.INFRA, Party.NODE,
    "if nobody killed the agent, the kernel may have, because memory was short (dmesg on that machine shows "
    "it): use fewer ranks or workers (num_workers) there, a smaller batch, or more memory for the job. If agents end "
    "whenever nobody is logged in, logind ends your processes there: run `loginctl enable-linger` on that machine",
    pattern=r"vanished without a word|its agent closed the connection",
)  # fmt: skip
VANISHED = LOST._replace(what="node 0's agent is killed")
SLEPT = Rule("node 0's agent is frozen for longer than `limits.link`, and runs again", Cause.INFRA, Party.NODE)
SILENT = Rule(
    "two nodes can't reach each other, in one direction or both, but the submitting machine reaches both",
    Cause.INFRA, Party.NODE,
)  # fmt: skip
REFUSED = Rule("a machine refuses another start (disk, interpreter, python3, key, memory)", Cause.INFRA, Party.MACHINE)
NOT_JOINED = Rule("a node does not join", Cause.INFRA, Party.NODE)
NO_LAUNCHER = Rule("the launcher's Python, a setup line or a warm import fails", Cause.USER_ERROR, Party.USER)
NO_ROOM = Rule(
    "a node has no space (inodes, quota, read-only), open files or processes left for another attempt",
    Cause.INFRA, Party.MACHINE,
)  # fmt: skip
NO_INPUT = Rule(
    "an input can't be fetched, or has another sha256", Cause.INFRA, Party.NODE,
    "set the input's `source` to an address that this node can open, or to a file that every node sees",
    pattern=r"input \S+ can't be fetched",
)  # fmt: skip
FOLDER_LOST = Rule(
    "the run's folder is removed under an agent", Cause.INFRA, Party.NODE, test=lambda seen: seen.folder_lost
)
LAUNCHER_LOST = Rule("a launcher is killed", Cause.INFRA, Party.NODE, test=_lost_launcher)
FROZEN = LAUNCHER_LOST._replace(what="a launcher is frozen (SIGSTOP)")
UNPROVED = Rule("", Cause.INFRA, Party.NODE)  # the key of an agent, or a message of an agent or launcher, is damaged
UNFIT = Rule("", Cause.USER_ERROR, Party.USER)  # a node can run no rank, lacks a module, or has a different image
CANCELLED = Rule("`orch cancel`", Cause.CANCELLED, Party.USER)
STOPPED = Rule("TERM, INT, USR1 or USR2 to an agent", Cause.PREEMPTED, Party.SCHEDULER)
ASKED_FOR_REQUEUE = Rule("a rank exits with 95, and no rank failed", Cause.PREEMPTED, Party.RANK)
OUT_OF_TIME = Rule("`resources.time` is over, restarts included", Cause.TIMEOUT, Party.USER)
IDLE = Rule("", Cause.IDLE, Party.USER)
NO_PROGRESS = Rule("", Cause.NO_PROGRESS, Party.RANK)
FORBIDDEN_START = Rule(
    "Slurm by itself starts the job again, and `retry.preempted` allows no further start",
    Cause.PREEMPTED, Party.SCHEDULER,
)  # fmt: skip
_ENDS = (
    SLEPT, SILENT, REFUSED, NOT_JOINED, NO_LAUNCHER, NO_ROOM, UNFIT, CANCELLED, STOPPED, ASKED_FOR_REQUEUE, OUT_OF_TIME,
    IDLE, NO_PROGRESS, FORBIDDEN_START,
)  # fmt: skip

# NCCL comes first, because its messages quote messages of the system, which mean something else if they appear alone.
# Patterns follow the exact messages in the sources of NCCL and CUDA, because if a rank reported no error, its last log
# lines are searched, and the program may have printed anything in them.
_GPU_ERRORS = (
    _gpu(r"Error while (creating|attaching to) shared memory segment|/dev/shm/nccl", Party.USER,
         "NCCL found no room in /dev/shm: in a container, raise `container.shm`; elsewhere make /dev/shm "
         "larger on that node, or set `env: {NCCL_SHM_DISABLE: '1'}` in the job, which is slower"),
    _gpu(r"ibv_(reg_\w+|create_(cq|qp)) failed.{0,40}(Cannot allocate memory|errno 12)", Party.USER,
         "InfiniBand could not lock memory: raise the limit of locked memory on that node to unlimited (ulimit -l; "
         "memlock in /etc/security/limits.conf, LimitMEMLOCK of sshd or slurmd)"),
    _gpu(r"Duplicate GPU detected|Multiple Ranks are using the same GPU", Party.USER,
         "two ranks of a node took the same GPU: give each rank its own, "
         "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), or start no more ranks than the node has GPUs"),
    _gpu(r"Mismatched NCCL version|NCCL library is too old|NCCL version mismatch", Party.USER,
         "the nodes have different versions of NCCL: give all of them the same torch (`environment.lock` in the job)"),
    _gpu(r"(Bootstrap|NET/Socket) ?: [Nn]o (usable listening |socket )?interface found", Party.USER,
         "NCCL found no network interface of the given name: set `interface` in the profile, or take "
         "NCCL_SOCKET_IFNAME out of the environment"),
    _gpu(r"NET/IB ?: Got (completion|async)|IBV_WC_\w+_ERR|ibv_modify_qp failed|NET/Socket ?: socket progress error"
         r"|socket(Progress|Poll|Start|Try|Finalize)\w*: "
         r"|ncclSystemError.{0,400}Connect(ion)? .{0,80}(refused|timed out)"
         r"|Call to connect .{0,80}failed", Party.NODE,
         "the network between the nodes failed while NCCL used it: check its links and counters (ibstat, ip "
         "-s link), or set another `interface` in the profile"),
    _gpu(r"ncclRemoteError|remote process exited or there was a network error", Party.NODE,
         "another rank ended, or the network to it failed: look at the other ranks' logs (orch logs RUN --all)"),
    _gpu(r"uncorrectable ECC error", Party.MACHINE,
         "a GPU's memory is broken: reset that GPU, or have it replaced (nvidia-smi -q -d ECC,ROW_REMAPPER shows "
         "which)"),
    _gpu(r"uncorrectable NVLink error|over nvlink or a hardware error", Party.MACHINE,
         "a link between GPUs is broken: nvidia-smi nvlink -e shows which; reset the GPUs of that host"),
    _gpu(r"Failed to bind NVLink SHARP|(CUDA error|Cuda failure) 401 'the operation cannot be performed", Party.MACHINE,
         "NVLink SHARP does not work on that host: check systemctl status nvidia-fabricmanager, and on hosts whose "
         "NVLink connects several hosts nvidia-imex too; both must have the driver's version; with `env: "
         "{NCCL_NVLS_ENABLE: '0'}` in the job, NCCL works without it, and more slowly"),
    _gpu(r"[Dd]river/library version mismatch|NVMLError_LibRmVersionMismatch"
         r"|system has unsupported display driver ?/ ?cuda driver combination", Party.MACHINE,
         "the driver's libraries on that host have another version than its kernel modules, usually after an upgrade: "
         "reboot the host, or load the new modules"),
    _gpu(r"Failed to initialize NVML: Unknown Error|NVMLError_Unknown", Party.NODE,
         "the container has lost its GPUs, usually by a systemctl daemon-reload on that host; a new container has them "
         "again; `gpu_flag: cdi` in the profile avoids this"),
    _gpu(r"(CUDA error|Cuda failure[ \d]*): ?'?unknown error|Cuda failure (999 )?'unknown error'|fallen off the bus"
         r"|GPU is lost|CUDA error: hardware stack error", Party.MACHINE,
         "a GPU of that host failed: its Xid is in dmesg; reset or power-cycle the host"),
    _gpu(r"CUDA-capable device\(s\) is/are busy or unavailable", Party.MACHINE,
         "another program uses that GPU exclusively (nvidia-smi -q -d COMPUTE,PIDS), or the GPU is broken"),
    _gpu(r"(CUDA error|Error 802|Cuda failure[ \d]*): ?'?system not yet initialized", Party.MACHINE,
         "the fabric manager does not run on that host: check systemctl status nvidia-fabricmanager, and "
         "that it has the driver's version"),
    _gpu(r"device-side assert", Party.USER,
         "a CUDA kernel refused a value, usually an index out of range (a label as large as the number of "
         "classes): run the program on a CPU, or with `env: {CUDA_LAUNCH_BLOCKING: '1'}` in the job, which "
         "shows the line"),
    _gpu(r"no kernel image is available", Party.USER,
         "this torch, or an extension, was not built for that GPU: compare torch.cuda.get_arch_list() with "
         "nvidia-smi --query-gpu=name,compute_cap"),
    _gpu(r"driver version is insufficient|driver on your system is too old|forward compatibility was attempted"
         r"|unsupported toolchain", Party.USER,
         "that node's driver is too old for this torch: update the driver, or install a torch for an older CUDA"),
    _gpu(r"Found no NVIDIA driver", Party.USER,
         "that machine has no NVIDIA driver, or its container has no access to it: let the script use the "
         "CPU there, or run it where nvidia-smi shows a GPU"),
    _gpu(r"No CUDA GPUs are available|ProcessGroupNCCL is only supported with GPUs, no GPUs found", Party.USER,
         "torch sees no GPU on that machine: it has no NVIDIA driver, or its container has no access to it, "
         "or CUDA_VISIBLE_DEVICES is empty; run the script where nvidia-smi shows a GPU, or let it use the "
         "CPU and the backend gloo"),
    _gpu(r"Torch not compiled with CUDA enabled", Party.USER,
         "that torch was built for CPUs: install a build with CUDA for that Python, or let the script use the CPU"),
    _gpu(r"no CUDA-capable device|invalid device ordinal", Party.USER,
         "the rank chose a GPU number that does not exist: use LOCAL_RANK, and no more ranks than nvidia-smi -L and "
         "CUDA_VISIBLE_DEVICES show"),
    _gpu(r"Cannot re-initialize CUDA in forked subprocess|CUDA error: initialization error", Party.USER,
         "CUDA was used before a fork: give the DataLoader multiprocessing_context='spawn'; if the ranks are "
         "forked, set `launcher: exec` in the job, or do not use CUDA while modules are imported"),
    _gpu(r"CU(BLAS|DNN|SOLVER|SPARSE)_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|(CUDA|HIP)( error:)? out of memory"
         r"|torch\.(cuda\.)?OutOfMemoryError|Cuda failure \d* ?'out of memory'|NVML_SUCCESS == r INTERNAL ASSERT",
         Party.USER,
         "the GPU ran out of memory: lower global_batch or accumulate gradients, use precision bf16 or "
         "activation checkpointing, shard (strategy fsdp), or set `env: {PYTORCH_CUDA_ALLOC_CONF: "
         "'expandable_segments:True'}` in the job"),
    _gpu(r"pidfd_getfd: Operation not permitted", Party.USER,
         "with expandable_segments, torch needs the right to trace processes before they can share a GPU's memory: set "
         "`container: {cap_add: [SYS_PTRACE]}` in the job, or take expandable_segments out of PYTORCH_CUDA_ALLOC_CONF"),
    _gpu(r"illegal memory access|misaligned address|illegal instruction was|unspecified launch failure", Party.USER,
         "a CUDA kernel failed: `env: {CUDA_LAUNCH_BLOCKING: '1'}` in the job shows the line, and "
         "compute-sanitizer shows the kernel; if it always fails on the same host, the GPU is broken"),
    _gpu(r"Watchdog caught collective operation timeout", Party.USER,
         "a collective timed out: one rank was slow or gone; to find that rank, use orch why RUN, or the logs of all "
         "ranks (orch logs RUN --all)"),
)  # fmt: skip

RULES: tuple[Rule, ...] = (
    FOLDER_LOST,
    Rule("the last checkpoint can't be written", Cause.CHECKPOINT, Party.MACHINE, test=_rank(lambda end: end.unsaved)),
    Rule(
        "a rank exits with 0 while others wait for it in a collective (uneven data, `os._exit(0)`, a handler of TERM)",
        Cause.USER_ERROR, Party.RANK,
        "every rank must take part in every collective: look for uneven data (drop_last, Join), for an exit on a "
        "single rank (sys.exit, os._exit), and for a handler of TERM that exits with 0",
        _culprit(lambda end: end.left_early is not None),
    ),
    Rule(
        "a rank dies while it exits, and the programs of all ranks had ended", Cause.NO_RETRY, Party.RANK,
        "the training is complete, so it is not repeated; call torch.distributed.destroy_process_group() at the end of "
        "the program, because threads of a process group that is still open can abort the process while it exits",
        _culprit(lambda end: end.at_exit),
    ),
    Rule("a rank exits with 93", Cause.NO_RETRY, test=_code(EXIT_NO_RETRY)),
    # a peer went away, and no rank failed by itself
    Rule("", Cause.INFRA, Party.NODE, test=_rank(is_victim)),
    Rule("", hint=_hint_on_worker, test=_rank(worker_was_killed)),
    Rule(
        "the kernel kills a rank for memory", Cause.INFRA, Party.RANK, _HINT_HOST_MEMORY, _rank(is_oom)
    ),
    *_GPU_ERRORS,
    Rule("", hint=_hint_on_module, test=_rank(lambda end: end.missing is not None)),
    Rule(
        "a rank stands still", Cause.INFRA, Party.RANK,
        "orch stacks RUN shows the stack of each rank of a running attempt; set `hang` in the job to wait longer",
        _culprit(lambda end: end.hang),
    ),
    Rule("", hint="the command was not found on that node: check its name and PATH", test=_code(127)),
    Rule("", hint="the command can't be executed: check its mode and its first line", test=_code(126)),
    SMALL_PACKETS,
    _says(r"KeyError '?(LOCAL_)?(RANK|WORLD_SIZE)\b|KeyError '?MASTER_(ADDR|PORT)\b"
          r"|environment variable \w+ expected, but not set",
          "the program expects a launcher's variables, which a single rank of a `python` line does not have: write "
          "torchrun in place of python; in a job, do not set `rank_variables: several`"),
    _says(r"time limit.* came before it had saved|saved nothing to go on from",
          "raise the time limit (`time`), or save checkpoints: docs/training.md#your-own-script; if the "
          "script saves into another folder, set `checkpoint.dir` in the job to that folder"),
    _says(r"setup line \d+ failed.*\b(module|ml): (command )?not found",
          "that node's login shell defines no `module`: let an earlier setup line source the file that defines it, "
          "such as `. /etc/profile.d/modules.sh` or `. /usr/share/lmod/lmod/init/bash`"),
    _says(r"setup line \d+ failed.*(unable to locate a modulefile|module\(s\) are unknown"
          r"|cannot be loaded as requested)",
          "that node has no module of this name: `module avail` on the node itself lists its modules"),
    _says(r"setup line \d+ failed.*(conda|mamba)(: (command )?not found| init|: CommandNotFoundError)",
          "that node's login shell does not set up conda: let an earlier setup line do it, such as `. "
          "~/miniconda3/etc/profile.d/conda.sh`; or leave conda out, and set `python` to the environment's "
          "bin/python"),
    _says(r"setup line \d+ failed",
          "try the line on that node, in a login shell as orch does: bash -lc 'THE LINE'; then correct "
          "`setup` in the profile"),
    _says(r"Argument list too long",
          "an argument of the command, or all variables and arguments together, are longer than that node's "
          "kernel allows: put the text into a file, and pass the file's name"),
    PORTS_TAKEN,
    _says(r"the launcher can't be started with",
          "set `python` in the profile to an interpreter that exists on every node"),
    _says(r"network interface \S+, which the profile names",
          "name an interface that every node has (`interface` in the profile), or leave `interface` out: "
          "then orch uses the interface of the route to node 0"),
    CANT_REACH,
    _says(r"in Lightning, but the product .* does not match the world size",
          "give the Trainer the numbers that orch has started: devices=int(os.environ['LOCAL_WORLD_SIZE']), "
          "num_nodes=int(os.environ['GROUP_WORLD_SIZE'])"),
    NO_INPUT,
    LOST,
    VANISHED,
    _says(r"Cannot allocate memory|MemoryError|can't allocate memory",
          "the host ran out of memory: use fewer ranks per node, or a smaller batch"),
    _says(r"No space left on device|Disk quota exceeded",
          "a disk is full: make room in the run directory, or set `checkpoint.dir` to a folder on another disk"),
    _says(r"Too many open files|Resource temporarily unavailable",
          "a limit of that node was reached: raise ulimit -n (open files) or ulimit -u (processes), or use "
          "fewer ranks per node"),
    _says(r"bus error|SIGBUS|unable to (open|write to|mmap) shared memory|/dev/shm",
          "shared memory is too small for the DataLoader: in a container, raise `container.shm`; otherwise "
          "use fewer workers"),
    _says(r"the module \S+ is missing on",
          "install the module there for that Python (for a container, in its image), or set `python` in the "
          "profile to an interpreter that has it; orch doctor -p PROFILE shows each machine's interpreter"),
    _says(r"ModuleNotFoundError|ImportError|No module named",
          "an import failed: install the package for that Python, name another Python in the profile (--set "
          "profile.python=PATH), or put the module into the code folder"),
    _says(r"Address already in use|EADDRINUSE",
          "a port is taken: use MASTER_PORT from the environment, and do not hard-code a port in the program"),
    _says(r"Timed out|timeout|DistStoreError|wait timeout",
          "a collective timed out: one rank was slow or gone; look at the other ranks' logs (orch logs RUN --all)"),
    _says(r"in a row hit the time limit without",
          "raise `time` in the profile, or have the script save checkpoints and resume from them "
          "(docs/own-scripts.md)"),
    _says(r"\bnan\b|not a finite|Loss is nan",
          "the loss is not a number: lower the learning rate, or check the data"),
    _says(NO_TERMINAL,
          "the program needs a terminal, and a rank has no terminal: let the command provide one, such as: script "
          "-qec 'python main.py' /dev/null"),
    _says(r"Permission denied",
          "this user may not read, write or run a file: check its owner and mode on that node"),
    _says(r"No such file or directory|FileNotFoundError",
          "a file is missing on that node: orch sends only the code folder, without ignored files, and the "
          "job's inputs to other machines"),
    Rule("a rank raises", Cause.USER_ERROR, test=_raised),
    LAUNCHER_LOST,
    FROZEN,
    Rule("a rank is killed, or crashes", Cause.INFRA, Party.RANK, _HINT_KILLED, _signal("SIGKILL")),
    Rule("", hint=_HINT_KILLED, test=_code(137)),
    Rule("", hint=_HINT_SHARED_MEMORY, test=_signal("SIGBUS")),
    Rule(
        "", hint="native code crashed: run the program with python -X faulthandler, which shows the line",
        test=_signal("SIGSEGV", "SIGABRT", "SIGILL"),
    ),
    Rule("a rank is killed, or crashes", Cause.INFRA, test=_rank(lambda end: end.signal)),
    Rule("a rank exits with 17", Cause.USER_ERROR, test=lambda seen: seen.exit is not None),
    *_ENDS,
)  # fmt: skip


def rule_of(seen: Seen) -> Rule:
    """Return the rule that decides the cause of a failure.

    Rules with a pattern are skipped, because patterns are for orch's own messages about ends that no rank caused.
    """
    rules = (rule for rule in RULES if rule.cause and not (rule.pattern and seen.exit))
    return next(rule for rule in rules if rule.applies(seen))


def cause_of(end: RankEnd, *, folder_lost: bool = False) -> Cause:
    """Return the cause of a rank's failure. If a node has lost the run's folder, the rank is not to blame."""
    return rule_of(Seen.of(end, folder_lost=folder_lost)).cause


def blamed(words: str, cause: Cause) -> Party:
    """Return the party to blame for an end that no rank caused. `words` is the recorded reason for the end.

    The party is that of the rule whose pattern matches `words`. If no pattern matches, it is that of the first rule of
    `_ENDS` with this cause.
    """
    if not cause:
        return Party.NOBODY
    seen = Seen(None, words)
    of_cause = [rule for rule in RULES if rule.cause is cause and rule.test is None and rule.applies(seen)]
    rule = next((rule for rule in (*of_cause, *_ENDS) if rule.cause is cause), None)
    return rule.culprit if rule is not None else Party.NOBODY


def hint_of(seen: Seen) -> str:
    """Return one sentence of advice on a failure, or "" if no rule has advice."""
    found = (rule.hint for rule in RULES if rule.hint and rule.applies(seen))
    return next(filter(None, (hint if isinstance(hint, str) else hint(seen) for hint in found)), "")


def hint_for(words: str) -> str:
    """Return one sentence of advice on a run whose end was not caused by a rank, or "" if no rule has advice."""
    return hint_of(Seen(None, words))


def gpu_error_of(end: RankEnd) -> Rule | None:
    """Return the rule for the error of CUDA or NCCL that ended a rank; None if the rank ended for another reason."""
    seen = Seen.of(end)
    return next((rule for rule in _GPU_ERRORS if rule.applies(seen)), None)


def is_machines_fault(end: RankEnd) -> bool:
    """Return whether a GPU or driver of the rank's machine ended the rank, so that the next start should avoid that
    machine.
    """
    rule = gpu_error_of(end)
    return rule is not None and rule.culprit is Party.MACHINE
