"""Job and profile files that nobody should trust: loaded, planned and shown, and nothing of them is ever done.

While a file is read and its plan is made and shown, no process may start, no socket connect, nothing be written: an
audit hook of the interpreter refuses, and remembers. What is refused is refused in sentences; what is accepted reaches
argv and environment as it was written.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.output import plan_json
from orchestrator.cli.render import plans
from orchestrator.errors import EXIT_USAGE, UsageError
from orchestrator.prepare import prepare
from orchestrator.prepare.prepare import Request
from orchestrator.protocol.masking import mask
from orchestrator.specs.plan import LaunchPlan, ranks_of

from .conftest import Soak

pytestmark = pytest.mark.soak

SECONDS = 10  # a spec that takes longer is a bomb that went off
FORBIDDEN = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
    "socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname", "os.mkdir",
    "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.utime",
    "os.putenv", "os.unsetenv", "os.kill", "shutil.", "ctypes.dlopen", "urllib.Request", "webbrowser.open",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ForbiddenActError(BaseException):
    """Something was about to be done; no `except Exception` may hide it."""


class Guard:
    """The audit hook: it can't be taken away again, so it is switched on and off."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event.startswith(FORBIDDEN) or (event == "open" and isinstance(args[2], int) and args[2] & WRITING):
            self.seen.append(f"{event} {args!r}"[:300])
            raise ForbiddenActError(self.seen[-1])

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        def late(*_: object) -> None:
            raise ForbiddenActError(f"not done within {SECONDS} s")

        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        self.on = True
        try:
            yield
        finally:
            self.on = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


GUARDS: list[Guard] = []  # one hook for the life of the interpreter

NASTY = (
    "$(touch x)", "`touch x`", "; touch x;", "&& touch x", "| touch x", "> x", "$HOME", "${IFS}touch${IFS}x", "%s%n",
    "'; touch x; '", '"; touch x; "', "a\nb", "a\rb", "a\x00b", "\x1b[31mred", "\x07", "../../etc/passwd",
    "/etc/passwd", "~root/x", "..", ".", "-rf", "--help", "-", "", " ", "\t", "ünïcödé", "名前", "🚀",
    "\u202egnp.exe", "\u2028", "\ufeff", "\ud800", "\udcff", "a" * 5000, "#SBATCH --uid=0", "\n#SBATCH --uid=0",
    "!!python/object/apply:os.system", "*", "?",
    "{{7*7}}", "${{x}}", "%(x)s", "\\", "\\n", "'", '"', "a b", "a=b", "=", "null", "yes", "1e999", "0x1F", "$PATH",
    "n[1-999999999]", "n[1-3", "n[3-1]", "a@b:99999", "@", ":22", "x;rm -rf /", "\u0000", "file:///etc/passwd",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 10**400, 0.1, 1e308, float("inf"), float("nan"), -0.0,
    [], {}, [[]], [None], {"": None}, {"a": {"b": {"c": []}}}, "12:00:00", "1d", "-5", "5 GB", "99999999999TB",
)  # fmt: skip
NAMES = ("NAME", "PATH", "LD_PRELOAD", "A", "_", "1A", "A B", "A=B", "", "RANK", "ORCH_HOME", "ünï", "A\nB", "BASH_ENV")
JOB_FIELDS = (
    "name", "module", "script", "command", "args", "env", "pass_env", "secrets", "code", "container", "checkpoint",
    "retry", "resources", "limits", "hang", "inputs", "launcher", "warm_imports", "training", "notify", "version",
    "__class__", "<<", "nodes", "unknown",
)  # fmt: skip
PROFILE_FIELDS = (
    "name", "nodes", "nproc_per_node", "backend", "runtime", "gpu_flag", "python", "workdir", "shared", "setup",
    "interface", "ports", "defaults", "kind", "hosts", "spares", "user", "port", "key", "jump", "partition", "account",
    "qos", "time", "gres", "gpus_per_node", "cpus_per_task", "mem", "constraint", "exclude", "login", "sbatch",
)  # fmt: skip
RAW = (
    "!!python/object/apply:os.system ['touch x']", "!!python/name:os.system", "&a [*a, *a]", "*undefined", "<<: *a",
    "!<tag:yaml.org,2002:python/object/new:os.system> ['touch x']", "%YAML 9.9\n---", "---\n---", "...", "? a\n: b",
    "[" * 3000, "{a: " * 500, "- " * 2000, "a: " * 300, "\t", "key: &x {y: *x}", "!!binary aGk=", "!!set {a, b}",
    "!!omap [a: 1]", "|+999\n a", ">-\n a", "'unclosed", '"\\u12"', '"\\xZZ"', "@at", "`tick`", "\x00", "\x85",
    "\u2028", "a: 1\na: 2", "=", "~", "0o17", "9" * 5000, "1" + "0" * 4500, "-.inf", ".nan", "!!int x", "!!float {}",
    "!", "!!",
    "&x &y z", "a: b: c", "[1, 2", "}", "# only a comment", "!!timestamp 2020-01-01", "!!merge <<", "a: !!null x",
)  # fmt: skip
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def word(chance: random.Random) -> Any:
    """A string that wants to be something else, or now and then no string at all."""
    if chance.random() < 0.15:
        return chance.choice(ODD)
    if chance.random() < 0.2:
        return "".join(chr(chance.choice((chance.randrange(128), chance.randrange(0x2FFF)))) for _ in range(8))
    return chance.choice(("", "x", "train.py ")) + chance.choice(NASTY)


def text(chance: random.Random) -> str:
    """A hostile word that a program can be given: no NUL, no half characters."""
    found = word(chance)
    return str(found).replace("\0", "").encode("utf-8", "ignore").decode() if isinstance(found, str) else "plain"


def value(chance: random.Random, depth: int = 0) -> Any:
    """Any value, of any kind."""
    roll = chance.random()
    if roll < 0.6 or depth > 4:
        return word(chance)
    if roll < 0.8:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    keys = chance.sample((*JOB_FIELDS, *PROFILE_FIELDS, *NAMES), chance.randrange(4))
    return {key: value(chance, depth + 1) for key in keys}


def job_of(chance: random.Random) -> dict[str, Any]:
    """A job that would do, with hostile strings wherever any string may stand."""
    job: dict[str, Any] = {
        "args": [text(chance) for _ in range(chance.randrange(4))],
        "env": {f"V{number}": text(chance) for number in range(chance.randrange(4))},
    }
    job |= chance.choice(
        (
            {"script": "train.py"},
            {"module": "train"},
            {"command": ["sh", "-c", text(chance)]},
            {"training": {"task": "train.py", "epochs": 1, "options": {"x": text(chance)}}},
        )
    )
    return job


def profile_of(chance: random.Random) -> dict[str, Any]:
    """A profile that would do."""
    return chance.choice(
        (
            {"kind": "local", "nodes": 1, "nproc_per_node": 2},
            {"kind": "local", "nodes": 2, "nproc_per_node": [1, 3]},
            {"kind": "ssh", "hosts": ["n[1-3]", "me@n4:22"], "nproc_per_node": 2},
            {"kind": "slurm", "nodes": 2, "nproc_per_node": 4, "partition": text(chance), "shared": True},
        )
    )


def spoil(chance: random.Random, document: dict[str, Any], fields: tuple[str, ...]) -> None:
    """Put something hostile into one to three fields."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        document[chance.choice(fields)] = value(chance)


def write(chance: random.Random, path: Path, document: dict[str, Any], *, raw: bool) -> None:
    """As JSON (which is YAML), as it is or with a piece of hostile YAML in it."""
    content = json.dumps(document, ensure_ascii=True, indent=chance.choice((None, 1)))
    if raw:
        lines = [f"{json.dumps(key)}: {json.dumps(item)}" for key, item in document.items()]
        piece = chance.choice((*RAW, *RAW, LAUGHS, chance.randbytes(20).decode("latin-1")))
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(("", "x: ", "name: ", "args: ", "env: ")) + piece)
        content = "\n".join(lines)
    data = content.encode("utf-8", "surrogatepass")
    if raw and chance.random() < 0.2:
        at = chance.randrange(len(data))
        data = data[:at] + chance.randbytes(chance.randint(1, 8)) + data[at:]
    path.write_bytes(data)


def request(chance: random.Random, job: Path, profile: Path) -> Request:
    """The files, now and then with hostile options beside them."""
    sets: list[str] = []
    env: list[str] = []
    if chance.random() < 0.2:
        field = chance.choice((*JOB_FIELDS, "args", "env.X", "a.b.c", ""))
        sets.append(f"{chance.choice(('job', 'profile', 'x'))}.{field}={word(chance)}")
    if chance.random() < 0.1:
        env.append(f"{chance.choice(NAMES)}={word(chance)}")
    name = word(chance) if chance.random() < 0.1 else None
    return Request(str(job), str(profile), tuple(sets), {"job.name": name} if name else {}, tuple(env))


def refusal(error: UsageError) -> str:
    """What is wrong with a refusal; empty for one that is a sentence."""
    said = f"{error.message}\n{error.hint}"
    try:
        said.encode()
    except UnicodeEncodeError:
        return "it can't be printed"
    if not error.message.strip() or "Traceback" in said or "pydantic" in said or error.exit_code != EXIT_USAGE:
        return "no sentence"
    odd = [char for char in said if not char.isprintable() and char != "\n"]
    return f"it holds {odd[:3]!r}" if odd else "it is too long" if len(said) > 20_000 else ""


def literally(launch: LaunchPlan, job: dict[str, Any]) -> str:
    """Where a string that was accepted is not what was written; empty for nowhere."""
    task = launch.tasks[0]
    args = tuple(job["args"])
    if args and task.program.args[-len(args) :] != args:
        return f"args {args!r} became {task.program.args!r}"
    if "command" in job and (task.program.target, *task.program.args)[: len(job["command"])] != tuple(job["command"]):
        return f"command {job['command']!r} became {task.program!r}"
    if wrong := {name: task.env.get(name) for name, item in job["env"].items() if task.env.get(name) != item}:
        return f"env {job['env']!r} became {wrong!r}"
    if any(row.argv[-len(args) :] != args for row in [*ranks_of(launch)][:4] if args):
        return f"args {args!r} became {next(ranks_of(launch)).argv!r}"
    return ""


@dataclass
class Trial:
    """Two files and a request, made of one number."""

    asked: Request
    document: dict[str, Any]
    clean: bool  # every string is hostile, but stands where any string may

    def __str__(self) -> str:
        job, profile = Path(self.asked.job).read_bytes()[:700], Path(self.asked.profile).read_bytes()[:500]
        return f"{job!r} {profile!r} {self.asked.sets} {self.asked.flags} {self.asked.env}"


def make(chance: random.Random, job: Path, profile: Path) -> Trial:
    """Write the files of a trial."""
    job_document, profile_document = job_of(chance), profile_of(chance)
    clean = chance.random() < 0.3
    if not clean:
        spoil(chance, *chance.choice(((job_document, JOB_FIELDS), (profile_document, PROFILE_FIELDS))))
    raw = not clean and chance.random() < 0.4
    raw_job = chance.random() < 0.5
    write(chance, job, job_document, raw=raw and raw_job)
    write(chance, profile, profile_document, raw=raw and not raw_job)
    asked = Request(str(job), str(profile)) if clean else request(chance, job, profile)
    return Trial(asked, job_document, clean)


def attempt(soak: Soak, guard: Guard, home: Path, trial: Trial) -> bool:
    """Whether it was accepted; what is wrong with how is counted."""
    try:
        with guard():
            launch = handle(home, trial.asked)
    except UsageError as error:
        problem = refusal(error)
        soak.check(not problem, f"{problem}: {error.message[:500]!r} {error.hint!r}\n{trial}")
        return False
    except (Exception, ForbiddenActError) as error:  # noqa: BLE001 (that is what is counted)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        soak.fail(f"{type(error).__name__}: {error} at {frame.filename}:{frame.lineno}\n{trial}")
        return False
    if trial.clean:
        problem = literally(launch, trial.document)
        soak.check(not problem, f"{problem}\n{trial}")
    return True


def test_hostile_specs_execute_nothing(tmp_path: Path, soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = GUARDS[0] if GUARDS else Guard()
    GUARDS[:] = [guard]
    place, home = tmp_path / "place", tmp_path / "home"
    place.mkdir()
    (place / "train.py").touch()
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    environment = dict(os.environ)
    job, profile = place / "job.yaml", place / "p.yaml"
    for _ in range(20):  # what is imported lazily is imported now, and may write its bytecode
        with contextlib.suppress(UsageError):
            handle(home, make(soak.chance, job, profile).asked)
    accepted, count = 0, soak.of(10_000, 500)
    for _ in range(count):
        accepted += attempt(soak, guard, home, make(soak.chance, job, profile))
    soak.check(not guard.seen, f"acts: {guard.seen}")
    soak.check(dict(os.environ) == environment, "the environment has changed")
    soak.check(not home.exists(), "the state folder was made")
    left = sorted(path.name for path in place.iterdir())
    soak.check(left == ["job.yaml", "p.yaml", "train.py"], f"files appeared: {left}")
    soak.check(accepted > count // 20, f"only {accepted} were accepted: the fuzz is too coarse")
    print(f"{accepted} of {count} accepted")
    soak.end("hostile job and profile files", count)


def handle(home: Path, asked: Request) -> LaunchPlan:
    """What `orch submit --dry-run` does, as text and as JSON."""
    prepared = prepare.prepare(home, asked)
    launch = prepare.plan_for(home, prepared)
    page = mask(plans.plan_page(launch, commands=True), prepared.environment.secrets)
    page.encode()
    json.dumps(plan_json(launch)).encode()
    return launch
