"""Notes that are printed before a request is submitted, about effects that may surprise the user."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.backends import backend_of
from orchestrator.prepare.prepare import Prepared, Request
from orchestrator.prepare.time_limit import note_on_time_limit
from orchestrator.protocol.masking import looks_secret
from orchestrator.specs.documents.paths import hidden_files
from orchestrator.specs.kinds import kind_named


def notes_on_hidden_files(prepared: Prepared, request: Request) -> list[str]:
    """Return a note for each job and profile that is hidden by a file of the same name."""
    loaded = prepared.loaded
    found = hidden_files(request.job, request.profile, loaded.job_path, loaded.profile_path, Path.cwd())
    return [f"note: {each}" for each in found]


def notes_on_request(prepared: Prepared, request: Request) -> list[str]:
    """Return notes about effects of a request that may surprise the user."""
    job = prepared.loaded.job
    notes = [*(f"note: {each}" for each in prepared.loaded.notes), *notes_on_hidden_files(prepared, request)]
    if job.batch is not None:
        notes.append(
            f"note: {job.command[-1] if job.command else 'the file'} runs as it is, on the first node of its job: orch "
            "keeps its log, its files and its end, but can't name a failed rank or restart single ranks"
        )
    if passed := [name for name in prepared.environment.passed if looks_secret(name)]:
        names = ", ".join(passed)
        notes.append(
            f"note: pass_env copies {names} into the run's plan; list them under secrets:, which is not stored"
        )
    receivers = [("notify", each.webhook or prepared.hidden.get(each.webhook_env or "", "")) for each in job.notify]
    if job.track:
        from orchestrator.trackers.progress import URI

        receivers.append(("track", prepared.hidden.get(URI, "")))
    hosts = [(field, urlsplit(address).hostname) for field, address in receivers if address.startswith("http://")]
    for field, host in dict.fromkeys(hosts):
        if host not in ("localhost", "127.0.0.1", "::1"):
            what = "the address" if field == "notify" else "a token or password"
            notes.append(
                f"note: {field} sends to {host} by http, so others on the network can read the message and {what}; "
                "use https://"
            )
    if note := note_on_time_limit(prepared.loaded.job, prepared.profile, prepared.loaded.code_dir):
        notes.append(note)
    if prepared.spawning is not None:
        notes.append(note_on_spawning(prepared))
    if note := note_on_gpus(prepared):
        notes.append(note)
    if job.checkpoint.resume not in ("auto", "never"):
        from orchestrator.prepare.resuming import note_on_resume

        if note := note_on_resume(job, prepared.loaded.code_dir):
            notes.append(note)
    return notes


def ranks_of_profile(prepared: Prepared) -> str:
    """Return a phrase on how many ranks the profile starts, such as `2 ranks of profile local`."""
    from orchestrator.specs.plan import nproc_by_node

    profile, counts = prepared.profile, nproc_by_node(prepared.profile)
    if None in counts:
        nodes = "its node has" if len(counts) == 1 else f"its {len(counts)} nodes have"
        return f"as many ranks as {nodes} GPUs (cores if none) of profile {profile.name}"
    total = sum(count or 0 for count in counts)
    nodes = f" on {len(counts)} nodes" if len(counts) > 1 else ""
    return f"{total} rank{'' if total == 1 else 's'}{nodes} of profile {profile.name}"


def note_on_spawning(prepared: Prepared) -> str:
    """Return a note that orch starts the program only once on each node, because the program starts its ranks
    itself.
    """
    nodes = prepared.profile.nodes
    where = "1 rank on 1 node" if nodes == 1 else f"1 rank on each of {nodes} nodes"
    note = f"note: {prepared.spawning}, so orch starts it once: {where}"
    is_script = prepared.spawning is not None and prepared.spawning.line > 0
    return f"{note}; --nproc-per-node N starts N ranks per node" if is_script else note


def note_on_python(prepared: Prepared) -> str:
    """Return a line about the interpreter that trains on this machine; empty if the run is on other machines."""
    profile, chosen = prepared.profile, prepared.interpreter
    if chosen is not None:
        return f"python {chosen.path} ({chosen.why})"
    named = profile.python if kind_named(profile.kind).on_this_machine and profile.runtime == "none" else None
    return f"python {named} (named by the line or the profile)" if named else ""


def note_on_gpus(prepared: Prepared) -> str:
    """Return a note if a profile with several nodes on this machine needs more GPUs than the machine has; empty
    otherwise.
    """
    profile = prepared.profile
    is_here, leases = kind_named(profile.kind).on_this_machine, getattr(profile, "leases", False)
    if not is_here or profile.nodes == 1 or not leases or "nccl" in profile.backend:
        return ""
    from orchestrator.node.system.gpus.devices import gpus
    from orchestrator.specs.plan import nproc_by_node

    there, per_node = gpus(), prepared.loaded.job.resources.gpus
    needed = sum(per_node or count or 1 for count in nproc_by_node(profile))
    if not 0 < there < needed or profile.backend == "gloo":
        return ""
    few = "GPU is" if there == 1 else "GPUs are"
    said = f"this machine's {there} {few} too few for {needed} on {profile.nodes} nodes"
    return f"note: {said}, so the ranks train on its CPUs"


def note_on_wait() -> str:
    """Return a note that this machine must stay on as long as the run waits for GPUs or slots of shared hosts."""
    return "note: this machine keeps the run's place in the queue and starts the run: leave it on until then"


def note_on_supervisor(prepared: Prepared, *, starts_later: bool = False) -> str:
    """Return a note about the work that stops while this machine is off; empty if no work depends on this machine.

    `starts_later` means that this machine will start further runs: points of a sweep, or runs that wait for other runs.
    """
    if starts_later and not kind_named(prepared.profile.kind).on_this_machine:
        return "note: this machine starts the waiting runs: leave it on; runs that have started continue without it"
    if getattr(prepared.profile, "login", None):
        return (
            "note: you can close or shut down this machine, the run continues; its logs and checkpoints "
            "are copied when it is back"
        )
    if not backend_of(prepared.profile).relaunches:
        return ""
    has_spares = bool(getattr(prepared.profile, "spares", ()))
    what = "replacing a lost node by a spare" if has_spares else "a restart after a lost node"
    return f"note: you can close or shut down this machine, the run continues; only {what} needs it online"
