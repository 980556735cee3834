"""A scheduler that is not Slurm, made of commands and parsers, on a machine for tests: `Batch` does all the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.batch.backend import Batch
from orchestrator.backends.batch.scheduler import Array, Job, Order, Put, Query, RefusedError, Scheduler, with_option
from orchestrator.errors import BackendError, UsageError
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.job_use import JobUse
from orchestrator.runs.record import SweepPoint
from orchestrator.runs.store import RunDir, create_run
from orchestrator.specs.plan import LaunchPlan
from orchestrator.transport.machine import Output
from tests.machines import FakeMachine, FakePool, Health, Said
from tests.unit.profiles import profile_of

from .slurm.test_script import launch

SWEEP = "s-abc234"


class ToyJob(Job):
    """A job of the toy scheduler."""

    @property
    def phase(self) -> str:
        return {"Q": "waiting", "E": "ended"}.get(self.state, "active")

    def why_it_waits(self, *, has_run: bool = False) -> str:
        return f"Toy job {self.job_id} waits"

    def how_it_ended(self, user: str = "") -> str:
        return f"Toy job {self.job_id} has ended"


def jobs_in(text: str) -> list[Job]:
    return [ToyJob(*words) for line in text.splitlines() if len(words := line.split()) == 3]


class Toy(Scheduler):
    """As little as a scheduler can be."""

    title, folder, programs = "Toy", "toy", ("tsub", "tstat", "tdel")
    hide, keep = ("TOY_",), ("TOY_HOME",)

    def queue(self, user: int) -> Query[Sequence[Job]]:
        return Query(("tstat",), jobs_in)

    def details(self, job_id: str) -> Query[Job | None]:
        return Query(("tstat", job_id), lambda text: next(iter(jobs_in(text)), None))

    def accounting(self, job_id: str) -> Query[Sequence[Job]]:
        return Query(("tacct", job_id), jobs_in)

    def use(self, user: int, job_id: str, name: str) -> Query[JobUse | None]:
        return Query(("tacct", job_id), lambda _: None)

    def lost(self, job_id: str, name: str) -> Job:
        return ToyJob(job_id, "E", name)

    def is_unknown(self, said: str) -> bool:
        return "unknown" in said

    def is_unreachable(self, said: str) -> bool:
        return "no server" in said

    def is_unanswered(self, said: str) -> bool:
        return "timed out" in said

    def is_over(self, said: str) -> bool:
        return "unknown" in said

    def submit(self, order: Order, put: Put, call: Callable[[Sequence[str]], Output]) -> str:
        path = f"{order.folder}/{self.folder}/script"
        put(path, self.script(order.launch).encode())
        answer = call(["tsub", path])
        if answer.code != 0:
            raise RefusedError(answer.err)
        return answer.out.strip()

    def script(self, launch: LaunchPlan) -> str:
        return " ".join(launch.commands[0])

    def cancel(self, job_id: str, signal: str = "") -> Sequence[str]:
        return ("tdel", *([signal] if signal else []), job_id)

    def cancel_waiting(self, job_id: str) -> Sequence[str]:
        return ("tdel", "Q", job_id)

    def step(self, job_id: str, node: int, host: str, argv: Sequence[str], *, terminal: bool) -> list[str]:
        return ["tstep", job_id, str(node), *argv]

    def after(self, launch: LaunchPlan, job_ids: Sequence[str], *, succeeds: bool) -> LaunchPlan:
        return with_option(launch, "sbatch", "after", job_ids)


class Site:
    """A machine with the toy's programs, which answer as a test says, and a run of three nodes."""

    def __init__(self, folder: Path) -> None:
        self.backend, self.jobs, self.ran = Batch(Toy(), is_remote=False), "", list[list[str]]()
        self.machine = FakeMachine("this machine", {"run_program": self.program, "missing_programs": {"missing": []}})
        self.backend.site(None).machine = lambda: self.machine
        profile = {"kind": "slurm", "name": "p", "sbatch": {}}
        self.run = create_run(folder / "home", "j-abc234", {"nnodes": 3, "kind": "slurm", "profile": profile})
        plan = launch(str(self.run.path))
        self.plan = replace(plan, commands=tuple(("/bin/true",) for _ in plan.commands))

    def program(self, argv: list[str], **_: Any) -> Said:
        self.ran.append(argv)
        if argv[0] == "tsub":
            self.jobs = "7 Q j-abc234"
            return {"code": 0, "err": ""}, b"7\n"
        if argv[0] == "tdel" and len(argv) == 2:
            self.jobs = "7 E j-abc234"
        return {"code": 0, "err": ""}, self.jobs.encode() if argv[0] == "tstat" else b""

    def submit(self) -> None:
        self.backend.submit([self.plan], [self.plan.tasks], [self.run])
        self.see(self.jobs)

    def see(self, jobs: str) -> None:
        self.jobs = jobs
        self.backend.site(None).queue(fresh=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_job_is_queued_seen_and_ended(site: Site) -> None:
    site.submit()
    assert site.run.read("handle.json") == {"state": "submitted", "job": "7"}
    assert (site.run.path / "toy" / "script").read_text() == "/bin/true"
    assert NodeTask.from_json(json.loads((site.run.node(2) / "task.json").read_text())) == site.plan.tasks[2]
    seen = site.backend.look(site.run)
    assert (seen.job, seen.scheduler and seen.scheduler.detail) == ("7", "Toy job 7 waits")
    site.see("7 R j-abc234")
    assert site.backend.look(site.run).alive == dict.fromkeys(range(3), True)
    assert site.backend.reach(site.run, 2, ["true"], terminal=False) == ["tstep", "7", "2", "true"]
    site.backend.cancel([site.run])
    assert site.ran[-1] == ["tdel", "TERM", "7"]
    assert [proof.is_clean for proof in site.backend.clean_up(site.run)] == [True] * 3
    assert site.ran.count(["tdel", "7"]) == 1
    assert site.backend.look(site.run).alive == dict.fromkeys(range(3), False)


@pytest.mark.parametrize("health", [Health.DEAD, Health.HUNG, Health.SLOW])
def test_a_machine_that_does_not_answer_makes_nothing_gone_and_is_named(site: Site, health: Health) -> None:
    site.submit()
    site.machine.health = health
    site.backend.site(None).queue(fresh=True)
    seen = site.backend.look(site.run)
    assert seen.alive == dict.fromkeys(range(3), None)
    assert seen.scheduler is not None
    assert seen.scheduler.detail.startswith("Toy can't be asked: this machine: ")
    assert [proof.is_unreachable for proof in site.backend.clean_up(site.run)] == [True] * 3
    site.machine.health = Health.WELL
    assert [proof.is_clean for proof in site.backend.clean_up(site.run)] == [True] * 3
    assert site.jobs == "7 E j-abc234"


@pytest.mark.parametrize("since", ["missing_programs", "write_file", "prepare_array_run"])
@pytest.mark.parametrize("health", [Health.DEAD, Health.HUNG, Health.SLOW, Health.FULL])
def test_no_job_is_submitted_if_the_machine_does_not_take_its_files(site: Site, health: Health, since: str) -> None:
    site.machine.health, site.machine.since = health, since
    with pytest.raises(BackendError, match=r"^this machine: ") as refused:
        site.submit()
    assert refused.value.transient == (health is not Health.FULL)
    assert site.ran == []
    assert (site.run.read("handle.json") or {}).get("job") is None


@pytest.mark.parametrize(("health", "jobs"), [(Health.SLOW, "7 Q j-abc234"), (Health.HUNG, "")])
def test_a_submit_whose_answer_comes_too_late_is_settled_by_the_queue_later(
    site: Site, health: Health, jobs: str
) -> None:
    site.machine.health, site.machine.since = health, "run_program"
    site.submit()
    assert site.run.read("handle.json") == {"state": "intent"}
    assert site.backend.look(site.run).alive == dict.fromkeys(range(3), None)
    site.machine.health = Health.WELL
    site.see(site.jobs)
    assert site.jobs == jobs
    seen = site.backend.look(site.run).scheduler
    assert seen is not None
    assert seen.phase == ("waiting" if jobs else "none")


def test_a_full_disk_keeps_no_job_from_being_seen_and_ended(site: Site) -> None:
    site.submit()
    site.machine.health = Health.FULL
    site.see("7 R j-abc234")
    assert site.backend.look(site.run).alive == dict.fromkeys(range(3), True)
    assert [proof.is_clean for proof in site.backend.clean_up(site.run)] == [True] * 3
    assert site.jobs == "7 E j-abc234"


@pytest.mark.parametrize("health", [Health.WELL, Health.HUNG, Health.SLOW])
def test_a_login_node_that_does_not_answer_is_not_blamed_for_its_python(health: Health) -> None:
    backend, far = Batch(Toy(), is_remote=True), FakeMachine("far", health=health)
    far.answers["interpreter"] = BackendError("far: /opt/python can't be started")
    backend.pool = FakePool(far)  # type: ignore[assignment]
    with pytest.raises(BackendError, match=r"^far: ") as refused:
        backend.agent_python(backend.site(profile_of("slurm", login="far")), "/opt/python")
    assert ("python" in refused.value.hint) == (health is Health.WELL)


def test_a_refusal_is_the_programs_own_words_unless_the_scheduler_explains_it(site: Site) -> None:
    site.machine.answers["run_program"] = lambda argv, **_: {"code": 1, "err": f"{argv[0]}: no such queue\n"}
    with pytest.raises(BackendError, match="tsub refused the job: tsub: no such queue"):
        site.submit()


def test_what_a_scheduler_can_not_do_is_refused_by_name(site: Site) -> None:
    assert site.backend.advice.completed(site.plan, by_shell=True) == site.plan
    assert (site.backend.advice.unsaid(site.run), site.backend.advice.excess(site.run)) == ("", "")
    for ask in (
        lambda: site.backend.advice.would_take(site.plan),
        lambda: site.backend.scheduler.holdings(site.backend.site(None)),
    ):
        with pytest.raises(UsageError, match="Toy"):
            ask()


def test_a_run_that_was_handed_over_is_found_by_its_name(site: Site) -> None:
    site.run.write("handle.json", {"state": "intent"})
    site.see("8 R other\n9 R j-abc234")
    waits = site.backend.advice.waiting_for(site.plan, [RunDir(site.run.path)], succeeds=True)
    assert waits is not None
    assert getattr(waits.profile, "sbatch", None) == {"after": "9"}


def points(site: Site, count: int, parallel: int | None = None) -> list[RunDir]:
    """Return the recorded runs of a sweep, which were not submitted yet."""
    root = site.run.root
    (root / "sweeps" / SWEEP).mkdir(parents=True)
    values = {"nnodes": 3, "kind": "slurm", "profile": {"kind": "slurm", "name": "p", "sbatch": {}}}
    asked = [SweepPoint(SWEEP, index, {}, parallel) for index in range(count)]
    return [create_run(root, f"{SWEEP}.{each.index}", {**values, "sweep": each.to_json()}) for each in asked]


def submit_all(site: Site, runs: list[RunDir]) -> None:
    plans = [replace(launch(str(run.path)), commands=site.plan.commands) for run in runs]
    site.backend.submit(plans, [plan.tasks for plan in plans], runs)


def test_the_runs_of_a_sweep_are_one_array(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    orders, submit = list[Order](), Toy.submit
    monkeypatch.setattr(
        Toy, "submit", lambda self, order, *words: (orders.append(order), submit(self, order, *words))[1]
    )
    runs = points(site, 2, parallel=5)
    submit_all(site, runs)
    folder = str(site.run.root / "sweeps" / SWEEP)
    assert [order.array for order in orders] == [Array(SWEEP, folder, 2, 5)]
    assert [run.read("handle.json") for run in runs] == [{"state": "intent", "array": folder}] * 2
    assert RunDir(Path(folder)).read("handle.json") == {"state": "submitted", "job": "7"}
    assert [site.backend.look(run, recorded=True).job for run in runs] == ["7_0", "7_1"]


def test_runs_that_need_different_resources_are_no_array(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "asked", lambda _, plan: {"memory": plan.tasks[0].run_dir})
    plans = [launch(str(run.path)) for run in points(site, 2)]
    with pytest.raises(UsageError, match="share one array of Toy, but these runs need different resources: memory"):
        site.backend.advice.check_alike(plans)


def test_an_array_may_wait_for_a_job_although_only_its_first_plan_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = points(site, 2)
    monkeypatch.setattr(Toy, "asked", lambda _, plan: {"after": plan.tasks[0].run_dir == str(runs[0].path)})
    submit_all(site, runs)
    assert all(run.has_begun for run in runs)


def test_the_number_of_a_job_is_cancelled_on_its_own_login_node_alone(tmp_path: Path) -> None:
    """Another cluster may have a job of the same number, which belongs to somebody else's work."""
    backend, ran, runs = Batch(Toy(), is_remote=True), dict[str, list[str]](), list[RunDir]()

    def machine(login: str) -> FakeMachine:
        def program(argv: list[str], **_: Any) -> Said:
            if argv[0] == "tdel":
                ran.setdefault(login, []).append(argv[-1])
            jobs = "" if argv[0] == "tdel" else "\n".join(f"{7 if login == 'a' else 8} Q {run.run_id}" for run in runs)
            return {"code": 0, "err": ""}, jobs.encode()

        return FakeMachine(login, {"run_program": program, "cancel": {}, "hello": {"uid": 7}})

    for number, (name, login) in enumerate((("j-aaaaaa", "a"), ("j-bbbbbb", "b")), 7):
        profile = {"kind": "slurm", "name": "p", "login": login, "sbatch": {}}
        run = create_run(tmp_path, name, {"nnodes": 1, "kind": "slurm-login", "profile": profile})
        run.write("handle.json", {"state": "submitted", "job": str(number)})
        runs.append(run)
        here = machine(login)
        backend.site(run.record().profile).machine = lambda here=here: here  # type: ignore[misc]
    backend.cancel(runs)
    assert {login: set(numbers) for login, numbers in ran.items()} == {"a": {"7"}, "b": {"8"}}


def test_what_the_scheduler_prints_when_it_takes_a_job_is_kept_and_told(site: Site) -> None:
    def program(argv: list[str], **_: Any) -> Said:
        site.jobs = "7 Q j-abc234"
        said = (
            {"code": 0, "err": "tsub: your job is cut to 10 min\n\n"} if argv[0] == "tsub" else {"code": 0, "err": ""}
        )
        return said, b"welcome to toys\n7\n" if argv[0] == "tsub" else site.jobs.encode()

    site.machine.answers["run_program"] = program
    site.backend.scheduler.submit = lambda order, put, call: (call(["tsub", "x"]), "7")[1]  # type: ignore[method-assign]
    site.submit()
    assert site.backend.advice.said(site.run) == "tsub says: tsub: your job is cut to 10 min; welcome to toys"


def test_a_limit_that_the_scheduler_has_changed_is_in_the_state(site: Site) -> None:
    site.run.write("run.json", {**(site.run.read("run.json") or {}), "profile": {"kind": "slurm", "time": 3600}})
    kind = site.backend.scheduler
    kind.queue = lambda _: Query(("tstat",), lambda _: [ToyJob("7", "R", "j-abc234", nodes="n1", limit=600)])  # type: ignore[method-assign]
    site.submit()
    status = site.backend.look(site.run).scheduler
    assert status is not None
    assert status.changed == "Toy gives the job 10 min 00 s, not the 1 h 00 min that the run asked for"
    assert status.detail == f"Toy job 7 is R on n1; {status.changed}"


@pytest.mark.parametrize(("alone", "expected"), [(True, "/apps/bin/pythonx"), (False, "/usr/bin/python3.11")])
def test_an_interpreter_that_only_the_setup_lines_make_available_starts_the_agents(alone: bool, expected: str) -> None:
    backend, far = Batch(Toy(), is_remote=True), FakeMachine("far")
    backend.pool = FakePool(far)  # type: ignore[assignment]

    def interpreter(python: str, setup: list[str], **_: Any) -> Said:
        if python == "pythonx" and not setup:
            return BackendError("far: the training interpreter pythonx can't be started")
        if python == "/apps/bin/pythonx" and not alone:
            return BackendError("far: libpython.so is missing")
        return {"python": "3.11.2", "path": "/apps/bin/pythonx", "tls": True}

    far.answers |= {"interpreter": interpreter, "hello": {"path": "/usr/bin/python3.11"}}
    site = backend.site(profile_of("slurm", login="far"))
    assert backend.agent_python(site, "pythonx", ["module load torch"]) == expected
    assert backend.agent_python(site, "/opt/python", ["module load torch"]) == "/opt/python"
    with pytest.raises(BackendError, match="pythonx can't be started"):
        backend.agent_python(site, "pythonx")
