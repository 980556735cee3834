"""The page's server as a process: who gets in, what it leaves on the disk, how it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import select
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.web import files
from orchestrator.web.app import STATIC
from orchestrator.web.gate import HEADERS
from tests.local.conftest import REPO, Orch
from tests.patience import PATIENCE
from tests.terminal import terminal


@dataclass(frozen=True)
class Answer:
    """One answer of the server."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Client:
    """Asks a server as a browser would, or as one that leaves something out."""

    name: str
    port: int
    session: dict[str, str]

    @property
    def host(self) -> str:
        return f"{self.name}:{self.port}"

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        sent = {"Host": self.host} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        finally:
            connection.close()

    def page(self, path: str, method: str = "GET", **body: Any) -> Answer:
        """Ask as the page does."""
        origin = {"Origin": f"http://{self.host}"} if method == "POST" else {}
        return self.ask(path, method, json.dumps(body) if body else None, **self.session, **origin)

    def enter(self, code: str) -> Answer:
        return self.page("/enter", "POST", code=code)


def code_in(opening: Path) -> tuple[str, int, str]:
    """The host name, the port and the code in the file that opens the page."""
    found = re.search(r"http://(orch-[0-9a-f]{16}\.localhost):(\d+)/enter#([\w-]+)", opening.read_text())
    assert found is not None
    return found[1], int(found[2]), found[3]


def entered(home: Path) -> Client:
    """A client with a session, by the opening file."""
    name, port, code = code_in(home / "ui" / "open.html")
    client = Client(name, port, {})
    answer = client.enter(code)
    assert answer.status == 200, answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    client.session = {"Cookie": cookie.partition(";")[0], "X_Orch_Session": json.loads(answer.text)["token"]}
    return client


def free_port() -> int:
    """A port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def served(orch: Orch, *options: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """`orch ui` in the foreground, once it has said that it can be opened."""
    argv = orch.argv("ui", *options)
    environment = orch.environment(**variables)
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment, cwd=orch.cwd) as process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if "Ctrl-C ends the server" in line:
                    break
            assert said, "it has ended"
            process.said = "".join(said)  # type: ignore[attr-defined]
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def orch(home: Path) -> Orch:
    return Orch(home, REPO)


@pytest.fixture(scope="module")
def client(orch: Orch, home: Path) -> Iterator[Client]:
    """A session with a server in the background."""
    done = orch("ui", "--detach", "--metrics-port", str(free_port()))
    assert done.code == 0, done.err
    yield entered(home)
    assert orch("ui", "--stop").code == 0


def test_every_answer_has_the_headers(client: Client) -> None:
    answers = [
        client.ask("/"),
        client.ask("/enter"),
        client.ask("/api/runs", Host="evil.example"),
        client.page("/none"),
    ]
    answers += [client.page(path) for path in ("/", "/api/runs", "/static/main.js")]
    assert [answer.status for answer in answers] == [401, 200, 421, 404, 200, 200, 200]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in answer.headers


def test_all_but_the_entrance_asks_for_a_session(client: Client) -> None:
    for path in ("/", "/api/runs", "/api/events", "/metrics", "/static/main.js", "/static/uPlot.iife.min.js", "/none"):
        assert client.ask(path).status == 401, path
    cookie = {"Cookie": client.session["Cookie"]}
    for path in ("runs", "runs/x", "runs/x/content?path=y", "events", "curves", "trends", "views/runs"):
        assert client.ask(f"/api/{path}", **cookie).status == 403, path
    for host in (f"127.0.0.1:{client.port}", f"localhost:{client.port}", "orch-0.localhost"):
        assert client.ask("/enter", Host=host).status == 421, host


def test_nothing_is_changed_from_elsewhere(client: Client) -> None:
    view = '{"name": "x", "query": "?"}'
    for where in ("/api/runs/none/cancel", "/api/runs/none/labels", "/api/views/runs"):
        assert client.ask(where, "POST", view, **client.session).status == 403
        assert client.ask(where, "POST", view, Origin="http://127.0.0.1:1", **client.session).status == 403
        assert client.ask(where, "POST", view, Origin="null", **client.session).status == 403
    assert json.loads(client.page("/api/views/runs").text) == {}
    for where in ("/api/runs/none/cancel", "/api/runs/none/labels"):
        assert client.page(where).status == 405
        answer = client.page(where, "POST", x=1)
        assert (answer.status, json.loads(answer.text)["error"]) == (404, "no run is called 'none'")


def test_bad_questions_get_a_sentence(client: Client) -> None:
    asked = {
        "/api/runs/..": 404,
        "/api/runs/%00": 404,
        "/api/sweeps/none": 400,
        "/api/diff": 400,
        "/api/diff?one=a&other=b": 404,
        "/api/curves?run=none": 404,
        "/api/curves?smoothing=x": 400,
    }
    for path, status in asked.items():
        answer = client.page(path)
        assert answer.status == status, path
        assert json.loads(answer.text)["error"], path
    for body in ("[", "[]", "1", "[" * 20_000, "x" * 100_000):
        answer = client.ask("/enter", "POST", body, Origin=f"http://{client.host}")
        assert answer.status == 403, body[:9]


def test_a_code_is_used_once(orch: Orch, home: Path, client: Client) -> None:
    assert orch("ui", "--no-open").code == 0  # of the server that runs: a new code
    name, port, code = code_in(home / "ui" / "open.html")
    assert (name, port) == (client.name, client.port)
    assert client.enter(code).status == 200
    assert client.enter(code).status == 403
    assert client.enter("").status == 403
    assert client.page("/api/runs").status == 200  # the first session goes on


def metrics(port: int, token: str, path: str = "/metrics") -> Answer:
    """What Prometheus is answered."""
    return Client("127.0.0.1", port, {}).ask(path, Authorization=f"Bearer {token}")


def test_prometheus_has_a_port_and_a_token_in_a_private_file(home: Path, client: Client) -> None:
    found = files.server_of(home)
    assert found is not None
    port, token = found[0].metrics_port, (home / "ui" / "metrics_token").read_text().strip()
    answer = metrics(port, token)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert [metrics(port, wrong).status for wrong in ("", "wrong")] == [401, 401]
    assert metrics(port, token, "/api/runs").status == 404
    named = Path(home / "ui" / "server.log").read_text().splitlines()
    assert len([line for line in named if "/metrics was asked for without its token by user " in line]) == 1
    assert metrics(client.port, token).status == 421
    assert client.ask("/metrics", Authorization=f"Bearer {token}").status == 401
    assert client.ask("/metrics", Cookie=client.session["Cookie"]).status == 404  # what the page's port does not have


def test_the_token_for_prometheus_is_worthless_when_the_server_has_ended(tmp_path: Path) -> None:
    orch, file, port = Orch(tmp_path / "home", REPO), tmp_path / "token", free_port()
    file.touch()
    file.chmod(0o640)
    options = ("--no-open", "--metrics-port", str(port))
    tokens = []
    with served(orch, *options) as process:
        own = orch.home / "ui" / "metrics_token"
        tokens.append(own.read_text().strip())
        assert metrics(port, tokens[0]).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert not own.exists()
    with served(orch, *options, "--metrics-token", str(file)) as process:
        tokens.append(file.read_text().strip())
        assert [metrics(port, each).status for each in tokens] == [401, 200]
        assert stat.S_IMODE(file.stat().st_mode) == 0o640  # which a group of Prometheus's may read
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert file.read_text() == ""
    link = tmp_path / "link"
    link.symlink_to(file)
    for option in ("--no-open", "--detach"):
        done = orch("ui", option, "--metrics-port", str(port), "--metrics-token", str(link))
        assert done.code == 1
        assert f"the token of /metrics can't be written to {link}: " in done.err
    assert orch("ui", "--metrics-token", str(file)).code == 2


# Opens connections that say nothing, and holds them until its input ends.
CROWD = """
import contextlib, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for _ in range(3000):
    with contextlib.suppress(ConnectionError):
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60))
print(len(held), flush=True)
sys.stdin.read()
"""


@contextmanager
def crowd(port: int, uid: int) -> Iterator[None]:
    """3,000 connections of a user."""
    argv, pipe = ["/usr/bin/python3", "-c", CROWD, str(port)], subprocess.PIPE
    with subprocess.Popen(argv, user=uid, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 1024
        yield
        process.communicate()


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096, reason="needs a hard limit of more than 3,000 open files"
)
def test_three_thousand_idle_connections_are_no_hindrance(tmp_path: Path) -> None:
    orch, port = Orch(tmp_path / "home", REPO), free_port()
    argv = orch.argv("ui", "--detach", "--no-open", "--metrics-port", str(port))
    few = ["sh", "-c", 'ulimit -n 1024; exec "$@"', "few", *argv]
    subprocess.run(few, env=orch.environment(), cwd=orch.cwd, check=True, capture_output=True)
    try:
        client, token = entered(orch.home), (orch.home / "ui" / "metrics_token").read_text().strip()
        users = {os.geteuid(), 65534 if os.geteuid() == 0 else os.geteuid()}
        for user in users:
            with crowd(client.port, user), crowd(port, user):
                assert client.page("/api/runs").status == 200
                assert metrics(port, token).status == 200
        said = (orch.home / "ui" / "server.log").read_text()
        assert said.count("refused a connection of user nobody (uid 65534)\n") == len(users) - 1
        assert len(said.splitlines()) <= len(users)
    finally:
        assert orch("ui", "--stop").code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("any_user", [False, True])
def test_another_user_comes_in_only_if_any_may(tmp_path: Path, any_user: bool) -> None:
    orch = Orch(tmp_path / "home", REPO)
    with served(orch, "--no-open", *(["--any-user"] if any_user else [])) as process:
        name, port, _ = code_in(orch.home / "ui" / "open.html")
        asking = f"import http.client as h; c = h.HTTPConnection('127.0.0.1', {port}); "
        asking += f"c.request('GET', '/enter', headers={{'Host': '{name}'}}); print(c.getresponse().status)"
        for _ in range(2):
            done = subprocess.run(
                ["/usr/bin/python3", "-c", asking], user=65534, capture_output=True, text=True, check=False
            )
            assert (done.stdout == "200\n") == any_user, done.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        said = [] if any_user else ["refused a connection of user nobody (uid 65534)\n"]
        assert process.stderr.readlines() == said


def test_a_port_that_another_has_is_said(tmp_path: Path) -> None:
    orch = Orch(tmp_path / "home", REPO)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for option, hint in (("--port", "leave --port out"), ("--metrics-port", "--metrics-port N")):
            done = orch("ui", "--no-open", option, str(port))
            assert done.code == 2
            assert f"port {port} of 127.0.0.1: Address already in use: " in done.err
            assert f"(uid {os.geteuid()}) listens there" in done.err
            assert hint in done.err


def test_what_lies_on_the_disk_is_the_users_alone(home: Path, client: Client) -> None:
    folder = home / "ui"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} >= {"metrics_token", "open.html", "server.json", "server.log"}
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    found = files.server_of(home)
    assert found is not None
    assert found[0].port == client.port
    command = Path(f"/proc/{found[0].pid}/cmdline").read_bytes().decode()
    assert found[0].key not in command
    assert str(client.port) not in command


def test_a_server_that_is_there_is_said(orch: Orch, client: Client) -> None:
    for options in (("--port", "1"), ("--metrics-port", "1"), ("--any-user",)):
        done = orch("ui", "--no-open", *options)
        assert done.code == 2, options
        assert f"served at port {client.port} already, with other options" in done.err


def test_options_that_exclude_each_other(orch: Orch) -> None:
    assert orch("ui", "--detach", "--stop").code == 2
    assert orch("ui", "last").code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_with_its_terminal_also_while_it_is_watched(tmp_path: Path, number: int) -> None:
    orch = Orch(tmp_path / "home", REPO)
    with served(orch, "--no-open") as process:
        client = entered(orch.home)
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=PATIENCE)
        headers = {"Host": client.host} | {name.replace("_", "-"): value for name, value in client.session.items()}
        connection.request("GET", "/api/events", headers=headers)
        stream = connection.getresponse()
        assert stream.readline() == b": hello\n"
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        stream.read()
        connection.close()
    assert {path.name for path in (orch.home / "ui").iterdir()} == {"server.lock", "start.lock"}


def test_what_opens_the_page_stands_in_no_argv(tmp_path: Path) -> None:
    orch, told = Orch(tmp_path / "home", REPO), tmp_path / "told"
    os.mkfifo(told)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s" "$*" > {told}\n')
    browser.chmod(0o755)
    with served(orch, BROWSER=str(browser)) as process:
        words = told.read_text()
        assert words == (orch.home / "ui" / "open.html").as_uri()
        *_, code = code_in(orch.home / "ui" / "open.html")
        assert code not in process.said  # type: ignore[attr-defined]  # what is no terminal may be a file


def test_on_a_login_node_it_says_how_to_come_there(tmp_path: Path) -> None:
    orch = Orch(tmp_path / "home", REPO)
    environment = orch.environment(SSH_CONNECTION="10.0.0.1 5 10.0.0.2 22", BROWSER="/bin/false")
    with terminal(orch.argv("ui"), env=environment) as screen:
        said = screen.until("Ctrl-C ends the server")
        name, port, code = code_in(orch.home / "ui" / "open.html")
        tunnel = rf"{port}:127\.0\.0\.1:{port} \w+@10\.0\.0\.2"
        assert re.search(rf"ssh -N -o ExitOnForwardFailure=yes -L {tunnel}", said)
        assert f"http://{name}:{port}/enter#{code}" in said
        screen.type("\x03")
        assert screen.code() == 0


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    orch = Orch(tmp_path / "home", REPO)
    (orch.home / "ui").mkdir(parents=True)
    (orch.home / "ui").chmod(0o777)
    done = orch("ui", "--detach")
    assert done.code == 1
    assert "may be written by others" in done.err


def test_without_its_packages_a_sentence_names_them(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'uvicorn' else real(name, *rest)\n"
    )
    done = Orch(tmp_path / "home", REPO)("ui", PYTHONPATH=str(tmp_path))
    assert done.code == 1
    assert "pip install 'orchrun[ui]'" in done.err


def test_a_server_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    orch = Orch(tmp_path / "home", REPO)
    assert orch("ui", "--detach").code == 0
    found = files.server_of(orch.home)
    assert found is not None
    server, process = found
    ended = os.pidfd_open(process.pid)
    signal.pidfd_send_signal(ended, signal.SIGKILL)
    select.select([ended], [], [], PATIENCE)
    os.close(ended)
    assert orch("ui", "--stop").err == "no server of the page is running on this machine\n"
    assert orch("ui", "--detach", "--port", str(server.port)).code == 0
    assert orch("ui", "--stop").code == 0


def test_the_chart_library_is_the_one_that_was_published() -> None:
    from hashlib import sha256

    names = {name: sha256((STATIC / name).read_bytes()).hexdigest() for name in ("uPlot.iife.min.js", "uPlot.min.css")}
    assert names == {
        "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
        "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    }
    assert "MIT" in (STATIC / "uPlot.LICENSE").read_text()


@pytest.mark.parametrize(("name", "option"), [
    ("server.lock", "--no-open"), ("start.lock", "--no-open"), ("open.html", "--no-open"), ("server.log", "--detach"),
])  # fmt: skip
def test_what_cant_be_written_is_said(tmp_path: Path, name: str, option: str) -> None:
    orch = Orch(tmp_path / "home", REPO)
    (orch.home / "ui" / name).mkdir(mode=0o700, parents=True)
    done = orch("ui", option)
    assert done.code == 1
    assert f"{name} can't be written: " in done.err
    assert "Traceback" not in done.err


def test_the_log_of_the_servers_before_is_kept(tmp_path: Path) -> None:
    orch = Orch(tmp_path / "home", REPO)
    (orch.home / "ui").mkdir(mode=0o700, parents=True)
    (orch.home / "ui" / "server.log").write_text("what another one has said\n")
    assert orch("ui", "--detach").code == 0
    assert orch("ui", "--stop").code == 0
    assert (orch.home / "ui" / "server.log").read_text().startswith("what another one has said\n")


def test_of_two_that_start_at_once_the_second_uses_the_faster_one(tmp_path: Path) -> None:
    orch = Orch(tmp_path / "home", REPO)
    environment = orch.environment()
    argv = orch.argv("ui", "--detach", "--no-open")
    both = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment, cwd=orch.cwd) for _ in range(2)]
    said = [each.communicate(timeout=PATIENCE)[1] for each in both]
    try:
        assert [each.returncode for each in both] == [0, 0], said
        assert sum("already serves the page" in each for each in said) == 1, said
        assert entered(orch.home).page("/api/runs").status == 200
    finally:
        assert orch("ui", "--stop").code == 0
