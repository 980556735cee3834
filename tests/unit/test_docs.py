"""What the documentation says of commands, options, files, modules and variables is what is there."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML

from orchestrator import errors
from orchestrator.cli import orch
from orchestrator.cli.group import SECTIONS
from orchestrator.cli.output_schemas import OUTPUTS
from orchestrator.cli.render.runs import SPARE
from orchestrator.cli.request import TakesArguments
from orchestrator.mcp.answers import ACTING, READING
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.protocol.events import KINDS
from orchestrator.protocol.layout import is_own_file
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.specs.border import valid
from orchestrator.specs.documents.loader import load
from orchestrator.specs.job import Job, Training
from orchestrator.specs.kinds import OWN
from orchestrator.specs.plan import RunPaths, plan, ranks_of
from orchestrator.specs.profile import LocalProfile
from orchestrator.specs.sbatch_options import CONVERTED, ONLY_AS_IT_IS, REFUSED
from orchestrator.specs.spec import names_of

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/*.md"), *ROOT.glob("bench/*.md")])
LLMS = ROOT / "llms.txt"  # the pages for programs, at the top of the repository and of the site
MANUAL = [page for page in PAGES if ROOT / "docs" in page.parents or page == ROOT / "README.md"]
CONTEXT = click.Context(orch)
EVERY = {name: orch.get_command(CONTEXT, name) for name in (*orch.list_commands(CONTEXT), *orch.unlisted)}
COMMANDS = sorted(EVERY)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Options that a page names as those of another program.
FOREIGN = {
    "slurm.md": {"--no-requeue", "--no-kill", "--time", "--mem", "--gpus-per-node", "--cpus-per-task"},  # sbatch's
    "sweeps.md": {"--lr"},  # a script's
    "trackers.md": {"--lr"},  # as above
    "from-sbatch.md": {
        *(f"--{name}" for name in {**CONVERTED, **ONLY_AS_IT_IS, **REFUSED}),  # sbatch's
        "--standalone",  # torchrun's
    },
    "frameworks.md": {"--config", "--include", "--exclude", "--num"},  # of accelerate and deepspeed
    "why.md": {"--nnodes"},  # torchrun's
    "launcher.md": {"--nnodes", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port"},
    "job.md": {"--local", "--local-rank"},  # a script's
    "own-scripts.md": {"--dist-url", "--local", "--no", "--use"},  # a script's and its launchers'
    "gpu.md": {"--cpu"},  # of tests/gpu/run.py
    "environment.md": {"--index-url", "--extra-index-url", "--find-links"},  # a requirements file's
    "testbed.md": set(re.findall(r'"(--[a-z-]+)"', (ROOT / "tests" / "testbed" / "__main__.py").read_text())),
}
TRAINING = {f"--{name.replace('_', '-')}" for name in names_of(Training)} | {"--option"}
FOREIGN |= {
    page.name: TRAINING | {"--no-gradient-as-bucket-view", "--no-reshard-after-forward"}
    for page in [ROOT / "docs" / "training.md", *ROOT.glob("docs/training/*.md")]
}
# Options that pages speak of and the command line does not have yet; one that has come must leave this list.
AWAITED: set[str] = set()

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
each_manual = pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
each_command = pytest.mark.parametrize("name", COMMANDS)


def fences(text: str) -> list[str]:
    """The fenced blocks without a language: those that show a terminal."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for language, block in blocks if not language]


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def inline_code(text: str) -> list[str]:
    """What stands in backticks; a span may go on in the next line."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def command_lines(text: str) -> list[str]:
    """Every line that a reader could type: `orch ...` in backticks, or at the start of a line in a block."""
    typed = [re.findall(r"^(?:\$ )?(orch .*)$", block, re.MULTILINE) for block in fences(text)]
    spans = [span for span in inline_code(text) if span.startswith("orch ")]
    return [*(line for lines in typed for line in lines), *spans]


def options_in(text: str) -> set[str]:
    """Long options that stand in backticks on their own, outside of tables of another program."""
    return {match[0] for span in inline_code(text) if (match := re.match(r"--[a-z][a-z-]*", span))}


def options_of(command: click.Command) -> set[str]:
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


ALL_OPTIONS = set().union(*(options_of(command) for command in (orch, *EVERY.values()))) | {"--help", "-h"}


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section '{title}'"
    return found[1]


def first_column(text: str) -> list[str]:
    """The names in backticks in the first column of the tables."""
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def misuse(line: str) -> str:
    """What the command line would refuse in this line; empty when nothing. Values are not looked at."""
    words = shlex.split(line.split(" # ", maxsplit=1)[0])[1:]
    if not words or words[0].startswith(("-", "[")):
        return "" if not words or words[0].strip("[]") in options_of(orch) | {"-h", "--help"} else words[0]
    if words[0] not in EVERY:
        return f"no command '{words[0]}'"
    command = EVERY[words[0]]
    context = click.Context(command, info_name=words[0], parent=click.Context(orch), **command.context_settings)
    typed = [word for word in words[1:] if word != "..."]
    if isinstance(command, TakesArguments) and "--" in typed:
        typed = typed[: typed.index("--")]
    try:
        _, rest, _ = command.make_parser(context).parse_args(typed)
    except click.UsageError as error:
        return error.format_message()
    return f"too many arguments: {rest}" if rest else ""


# -- commands and options


@each_manual
def test_every_command_line_can_be_typed(page: Path) -> None:
    refused = {line: why for line in command_lines(page.read_text()) if (why := misuse(line))}
    assert refused == {}


def test_command_lines_are_found_and_wrong_ones_refused() -> None:
    text = "see `orch status\n--json` and `ls`\n\n```\n$ orch why last\n  orch rm x     not typed\norch wait RUN\n```\n"
    assert command_lines(text) == ["orch why last", "orch wait RUN", "orch status --json"]
    for line in (
        "orch frobnicate",
        "orch status --jsno",
        "orch wait RUN OTHER",
        "orch --verison",
        "orch wait --timeout",
    ):
        assert misuse(line), line
    assert misuse("orch init mine torchrun --nproc_per_node 4 train.py") == ""
    assert sum(len(command_lines(page.read_text())) for page in MANUAL) > 45


@each_manual
def test_every_option_exists(page: Path) -> None:
    unknown = options_in(page.read_text()) - ALL_OPTIONS - FOREIGN.get(page.name, set()) - AWAITED
    assert unknown == set()


def test_an_option_that_has_come_is_no_longer_awaited() -> None:
    named = set().union(*(options_in(page.read_text()) for page in MANUAL))
    assert {option for option in AWAITED if option in ALL_OPTIONS or option not in named} == set()


@each_command
def test_the_example_of_each_help_can_be_typed(name: str) -> None:
    line = re.search(r"orch [^)>]*", EVERY[name].epilog or "orch status")
    assert line is not None
    assert misuse(line[0]) == ""


@each_command
def test_each_command_has_its_section_with_all_its_options(name: str) -> None:
    text = section((ROOT / "docs" / "cli.md").read_text(), name)
    command = EVERY[name]
    words = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
    missing = {max(option.opts, key=len) for option in command.params if isinstance(option, click.Option)} - words
    assert missing == set()
    assert [word for word in first_column(text) if word.split()[0] not in options_of(command)] == []


def test_no_command_is_described_that_is_not_there() -> None:
    titles = re.findall(r"^## (.*)$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
    assert {title for title in titles if title.islower()} == set(COMMANDS)


# -- exit codes, JSON, variables


def test_the_exit_codes_are_those_of_errors_py() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    table = section((ROOT / "docs" / "cli.md").read_text(), "Exit codes")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == codes
    line = section((ROOT / "docs" / "design.md").read_text(), "Exit codes").split(" Exit codes of a rank")[0]
    assert {int(code) for code in re.findall(r"\b(\d+) ", line)} == codes


def test_the_json_fields_are_those_that_are_printed() -> None:
    text = section((ROOT / "docs" / "cli.md").read_text(), "JSON")
    state = RunState("", "", "", 0.0, RunStatus.PENDING).to_json()
    of_a_run = {"progress", "last_line", "result", "folder", "record", "notifications", "findings", "trackers"}
    of_a_run |= {"labels", "account"}
    named = first_column(text)
    assert set(named) == {*state, *of_a_run}
    assert set(named[: len(state)]) == set(state), "the fields of a state come first"
    assert f"from `{named[0]}` to `{named[len(state) - 1]}`" in text
    verdict = text[text.index("a **verdict**") :]
    assert set(Verdict(Outcome.FAILED).to_json()) <= set(re.findall(r"`(\w+)`", verdict))


def test_the_columns_that_a_narrow_table_of_runs_omits() -> None:
    text = section((ROOT / "docs" / "cli.md").read_text(), "status")
    found = re.search(r"In a narrow terminal, the table has no columns ([A-Z, and\n]+)\.", text)
    assert found is not None
    assert set(re.findall(r"[A-Z]{2,}", found[1])) == set(SPARE)


def test_the_variables_of_a_rank() -> None:
    job = valid(Job, {"name": "job", "command": ["true"]})
    profile = LocalProfile(kind="local", name="here", nodes=1, nproc_per_node=1)
    launch = plan(job, profile, "job-abcdef", RunPaths("/run", "/code", "/inputs", "python3", "python3"))
    named = first_column(section((ROOT / "docs" / "cli.md").read_text(), "What a rank sees"))
    assert len(named) == len(set(named))
    assert set(named) == set(next(ranks_of(launch)).environment)


def test_the_variables_that_orch_reads() -> None:
    sources = [path for path in control_side() if path.name != "initialise.py"]
    read = {
        name for path in sources for name in re.findall(r'environ(?:\.get\(|\[)"([A-Z_]+)"', path.read_text())
    }  # fmt: skip
    assert set(first_column(section((ROOT / "docs" / "cli.md").read_text(), "Variables that orch reads"))) == read


def control_side() -> Iterator[Path]:
    for path in sorted((ROOT / "orchestrator").rglob("*.py")):
        if path.relative_to(ROOT / "orchestrator").parts[0] not in ("node", "training"):
            yield path


def test_every_kind_of_event_is_described_once() -> None:
    named = first_column((ROOT / "docs" / "events.md").read_text())
    assert sorted(named) == sorted({each.kind for each in KINDS.values()})


def test_the_files_of_a_run_are_those_that_orch_writes() -> None:
    named = first_column((ROOT / "docs" / "files.md").read_text())
    shared = {"code", "checkpoints", "outputs", "slurm"}  # in which others write, too
    logs = {"nodes/N/attempt_K/rank_R.log"}
    for name in set(named) - shared - logs:
        assert is_own_file(name.replace("/N/", "/0/"), here=True), name
    assert is_own_file("nodes/0/attempt_0", here=True)
    assert len(named) == len(set(named))


# -- the site


def entries(of: Any) -> Iterator[str]:
    """The pages in a part of the menu."""
    if isinstance(of, str):
        yield of
    else:
        for part in of if isinstance(of, list) else of.values():
            yield from entries(part)


def test_each_page_is_in_the_menu_once() -> None:
    menu = YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(entries(menu)) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


@each_manual
def test_the_first_sentence_of_a_page_says_what_its_reader_can_do(page: Path) -> None:
    if page.name == "README.md":  # it begins with a picture
        return
    assert re.match(r"# .+\n\n(?!(?:An?|It|The|These|This)\b)[A-Z]", page.read_text())


def test_the_code_of_the_front_page_is_not_cut_off() -> None:
    """On the site, a browser window of 1,400 pixels shows 93 characters of a line of code."""
    assert [
        line for block in fences((ROOT / "README.md").read_text()) for line in block.split("\n") if len(line) > 93
    ] == []


def test_a_recorded_session_holds_no_name_or_path_of_the_machine_that_recorded_it() -> None:
    pages = [page for page in MANUAL if "<!-- recorded on" in page.read_text()]
    assert len(pages) == 2
    for page in pages:
        shown = "\n".join(fences(page.read_text()))
        assert re.findall(r"/tmp/\S+|/root/\S+|\(vm\)", shown) == []
        assert set(re.findall(r"/home/(\w+)", shown)) <= {"alice"}
        assert str(ROOT) not in shown


def test_llms_txt_has_links_to_pages_of_the_site_and_commands_that_can_be_typed() -> None:
    text = LLMS.read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(set(links)) > 15
    assert {link for link in links if ROOT / link not in MANUAL} == set()
    assert {line: why for line in command_lines(text) if (why := misuse(line))} == {}
    assert options_in(text) - ALL_OPTIONS == set()
    assert re.match(r"# orch\n\n> .+\n\n", text)


# -- orch for coding agents


def test_each_command_is_in_the_table_of_safe_commands_once_with_its_json() -> None:
    rows = re.findall(
        r"^\| (`.*?) \| (yes|no) \|", section((ROOT / "docs" / "agents.md").read_text(), "Safe commands"), re.M
    )
    found = [(name, has_json == "yes") for names, has_json in rows for name in re.findall(r"`([^`]+)`", names)]
    shown = orch.list_commands(CONTEXT)
    assert sorted(found) == sorted((name, name in OUTPUTS) for name in shown)


def test_each_tool_is_described_with_its_arguments() -> None:
    text = section((ROOT / "docs" / "agents.md").read_text(), "Tools")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE)
    tools = {tool.__name__: list(inspect.signature(tool).parameters) for tool in (*READING, *ACTING)}
    assert {name: re.findall(r"`(\w+)`", arguments) for name, arguments in rows} == tools


def test_the_exit_codes_of_agents_are_those_of_the_command_line() -> None:
    places = (("cli.md", "Exit codes"), ("agents.md", "Wait"))
    tables = [section((ROOT / "docs" / page).read_text(), title) for page, title in places]
    codes = [sorted(re.findall(r"^\| (\d+) \|", table, re.MULTILINE)) for table in tables]
    assert codes[0] == codes[1]


# -- files


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@each_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name) if name else page
        headings = (
            re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if path.suffix == ".md" and path.is_file() else []
        )
        if not path.exists() or (anchor and anchor not in map(slug, headings)):
            broken.append(target)
    assert broken == []


def headings(page: Path) -> set[str]:
    return {slug(title) for title in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}


def test_every_page_that_the_code_names_is_there() -> None:
    """Hints and help name pages, some with a section: docs/training.md#your-own-script."""
    named = {
        link for path in (ROOT / "orchestrator").rglob("*.py")
        for link in re.findall(r"docs/[\w/-]+\.md(?:#[\w-]+)?", path.read_text())
    }  # fmt: skip
    pages = {link: link.partition("#") for link in named}
    missing = {
        link for link, (page, _, section) in pages.items()
        if not (ROOT / page).is_file() or (section and section not in headings(ROOT / page))
    }  # fmt: skip
    assert missing == set()
    assert len(named) > 5


@each_page
def test_jobs_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"(?<![\w/])jobs/[\w./-]+\.(?:yaml|py)", page.read_text()))
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_house_is_the_tree() -> None:
    house = section((ROOT / "docs" / "design.md").read_text(), "The house")
    named = re.findall(r"^(\S+(?:\.py|/)) +\S", house, re.MULTILINE)
    package = ROOT / "orchestrator"
    packages = {
        f"{path.parent.relative_to(package)}/" for path in package.glob("**/__init__.py") if path.parent != package
    }
    at_the_root = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    assert len(named) == len(set(named))
    assert set(named) == packages | at_the_root


def test_the_house_names_the_commands_of_each_group() -> None:
    house = section((ROOT / "docs" / "design.md").read_text(), "The house")
    named = dict(re.findall(r"^cli/commands/(\w+)/ +(\S.*)$", house, re.MULTILINE))
    assert named == {name: ", ".join(names) for name, (_, names) in SECTIONS.items()}


def test_the_files_and_functions_of_the_start_exist() -> None:
    story = (
        (ROOT / "docs" / "design.md")
        .read_text()
        .partition("A reader who follows `orch submit`")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (`.*?`) \|", story, re.MULTILINE)
    defined = {file: _defined_in(ROOT / "orchestrator" / file) for file, _ in rows}
    assert {
        f"{file}: {name}" for file, names in rows for name in re.findall(r"`(.+?)`", names) if name not in defined[file]
    } == set()
    assert {
        name for name in re.findall(r"`([\w/]+\.py)`", story) if not (ROOT / "orchestrator" / name).is_file()
    } == set()
    assert len(rows) > 10


def _defined_in(file: Path) -> set[str]:
    """The functions and classes of a file, and the methods as Class.method."""
    found = [node for node in ast.parse(file.read_text()).body if isinstance(node, DEFINITIONS)]
    methods = [(top, node) for top in found for node in top.body if isinstance(node, DEFINITIONS)]
    return {node.name for node in found} | {f"{top.name}.{node.name}" for top, node in methods}


def test_no_other_class_is_called_a_machine() -> None:
    files = (ROOT / "orchestrator").rglob("*.py")
    named = {name for file in files for name in _defined_in(file) if re.fullmatch(r"\w*Machine(Reader|s)?", name)}
    assert named == {"Machine", "LocalMachine", "Machines"}


def test_the_files_and_tests_that_a_recipe_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Recipes\n")[2]
    named = set(re.findall(r"`([a-z_/]+/[a-z_0-9]+\.(?:py|js|md|yml))(?:::(\w+))?`", text))
    found = {name: path for name, _ in named for path in (ROOT / name, ROOT / "orchestrator" / name) if path.is_file()}
    assert {name for name, _ in named} - set(found) == set()
    assert {test for name, test in named if test and f"\ndef {test}(" not in found[name].read_text()} == set()
    assert len(named) > 50


def test_each_kind_of_profile_is_in_the_tables_of_kinds() -> None:
    values = re.search(r"^\| `kind` \| (.*?) \|", (ROOT / "docs" / "profile.md").read_text(), re.MULTILINE)
    assert values is not None
    assert re.findall(r"`(\w+)`", values[1]) == list(OWN)
    backends = (ROOT / "docs" / "backends" / "index.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", backends, re.MULTILINE) == ["kind", *OWN]  # the first is the heading


def test_the_layers_are_those_that_are_enforced() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    enforced = contract["layers"]
    text = section((ROOT / "docs" / "design.md").read_text(), "Layers")
    line = re.search(r"^(cli\b.*?)\.$", text, re.MULTILINE | re.DOTALL)
    assert line is not None
    assert re.split(r"\s>\s", line[1]) == enforced


def test_the_first_job_and_profile_load(tmp_path: Path) -> None:
    page = ROOT / "docs" / "own-scripts.md"
    blocks = re.findall(r"^```yaml\n# (\S+):.*?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "cluster_profiles").mkdir()
    (tmp_path / "train.py").touch()
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    loaded = load("mine.yaml", "lab", cwd=tmp_path)
    assert (loaded.job.script, loaded.profile.nodes) == ("train.py", 3)


@each_page
def test_pages_are_finished(page: Path) -> None:
    assert re.findall(r"\b(?:TODO|FIXME|TBD|XXX|coming soon)\b", page.read_text()) == []
