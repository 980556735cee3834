"""Reading YAML: what is taken for what, and every refusal with its place."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import SpecError
from orchestrator.specs.documents.yaml_source import MAX_BYTES, Node, from_value, merge, nested, parse, plain, read_yaml


def data(text: str) -> Any:
    node = parse(text, "f.yaml")
    assert node is not None
    return plain(node)


def refusal(text: str | bytes, tmp_path: Path) -> str:
    path = tmp_path / "f.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        read_yaml(path, "job")
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 0x1F, 0o17, -3, 017]", [1, 31, 15, -3, 17]),
        ("[1e-3, 1.5, .5, 2E5]", [0.001, 1.5, 0.5, 200_000.0]),
        ("[true, False, null, ~]", [True, False, None, None]),
        ("[yes, no, on, 2020-01-01, 12:00:00, 1_000, '1', \"true\"]",
         ["yes", "no", "on", "2020-01-01", "12:00:00", "1_000", "1", "true"]),
        ("[.inf, -.inf, .nan]", [".inf", "-.inf", ".nan"]),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a: &x [1]\nb: *x\n", {"a": [1], "b": [1]}),
        ('{"a":\n\t["\\ud83d\\ude00 \\/"]}', {"a": ["😀 /"]}),
        ("%YAML 1.1\n---\na: yes", {"a": "yes"}),
        ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_yaml_1_2_and_nothing_else(text: str, expected: Any) -> None:
    assert data(text) == expected


# JSON leaves DEL as it is, and YAML refuses it.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé 1", max_size=4), inner, max_size=4),
        max_leaves=12,
    )
)
def test_json_is_yaml(value: Any) -> None:
    assert data(json.dumps(value)) == value


def test_numbers_keep_their_text_where_it_matters() -> None:
    node = parse("args: [1e-3, 0x10, 1.0, [2.50]]\nlr: 1e-3", "f")
    assert node is not None
    assert plain(node, frozenset(("args",))) == {"args": ["1e-3", "0x10", "1.0", ["2.50"]], "lr": 0.001}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml:1:1: the job file is empty"),
        ("# only a comment\n", "f.yaml:1:1: the job file is empty"),
        ("---\n", "f.yaml:1:1: the job file is empty"),
        ("\n- 1\n", "f.yaml:2:1: a job file is a mapping of 'key: value' lines, but this one is a list"),
        ("a: 1\nb: 2\na: 3", "f.yaml:3:1: the key 'a' is given twice (first in line 1)"),
        ("a:\n\tb: 1", "f.yaml:2:1: not valid YAML: found character '\\t' that cannot start any token\nindent with"),
        ("a: b: c", "f.yaml:1:5: not valid YAML: mapping values are not allowed here\nput quotes around"),
        ("a: [1", "f.yaml:1:"),
        ("hosts: [n[1-3]]", "put quotes around a host range"),
        ("a: !!python/object/apply:os.system [x]", "f.yaml:1:4: the tag 'tag:yaml.org,2002:python/object/apply:os"),
        ("a: !x b", "f.yaml:1:4: the tag '!x' is not allowed"),
        ("!!map a: 1", "the tag"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: a second document starts here; a job file holds one"),
        ("a: " + "[" * 5000, "f.yaml:1:43: nested more than 40 levels deep"),
        ("a: " + "{a: " * 5000, "nested more than 40 levels deep"),
        ("1: 2", "f.yaml:1:1: the key 1 is not allowed"),
        ("null: 2", "f.yaml:1:1: the key null is not allowed"),
        ("[a]: 2", "f.yaml:1:1: a list as a key is not allowed"),
        ("a: &x [*x]", "f.yaml:1:8: the alias *x refers to a value that contains this alias"),
        ("a: *.py", "f.yaml:1:"),
        ('a: "\\ud800"', "f.yaml:1:4: contains half of a surrogate pair"),
        ('a: "\\U00110000"', "f.yaml:1:1: not valid YAML after this place"),
        ("a: \x00", "f.yaml:1:4: the control character '\\x00' is not allowed in YAML"),
        (b"a: 1\nb: \xff", "f.yaml:2:4: byte 9 (0xff) is not UTF-8"),
        ("a: 1".encode("utf-16"), "f.yaml:1:1: byte 1 (0xff) is not UTF-8"),
        (b"#" * (MAX_BYTES + 1), "f.yaml: larger than 1000 kB"),
        ("a: [" + "1," * 60_000 + "1]", "holds more than 50000 values"),
    ],
)
def test_refusals_name_the_place(text: str | bytes, message: str, tmp_path: Path) -> None:
    assert message in refusal(text, tmp_path)


def test_aliases_do_not_multiply_a_long_text(tmp_path: Path) -> None:
    long = "A" * 400_000
    assert "5 MB of text (with its aliases expanded)" in refusal(f"a: [&x {long}{', *x' * 40_000}]", tmp_path)
    assert data(f"a: [&x {long}{', *x' * 9}]") == {"a": [long] * 10}


def test_aliases_do_not_nest_deeper_than_brackets(tmp_path: Path) -> None:
    chain = "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60))
    assert refusal(f"a0: &a0 [x]\n{chain}", tmp_path) == "f.yaml:40:12: nested more than 40 levels deep"


@pytest.mark.parametrize("text", ["a: !" + "b" * 900_000, "a: " + "!" * 900_000])
def test_a_tag_without_an_end_is_refused_at_once(tmp_path: Path, text: str) -> None:
    assert "f.yaml:1:4: more than 20000 characters without a space follow this '!'" in refusal(text, tmp_path)


@pytest.mark.parametrize("text", ["a: !{} c", "a: *{}", "{0}: 1\n{0}: 2", "a: &{0} [*{0}]"])
def test_a_refusal_shows_the_beginning_of_a_long_name(tmp_path: Path, text: str) -> None:
    said = refusal(text.format("b" * 900), tmp_path)
    assert "b" * 50 in said
    assert len(said) < 400


def test_an_alias_bomb_is_refused_before_it_is_built(tmp_path: Path) -> None:
    bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n"
    for i in range(1, 12):
        bomb += f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n"
    assert "(with its aliases expanded)" in refusal(bomb, tmp_path)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "a folder, not"), (tmp_path / "no.yaml", "there is no such job file")):
        with pytest.raises(SpecError, match=message):
            read_yaml(path, "job")
    with pytest.raises(SpecError, match="not a regular file"):
        read_yaml(Path("/dev/null"), "job")
    with pytest.raises(SpecError):
        read_yaml(tmp_path / ("x" * 300), "job")
    with pytest.raises(SpecError):
        read_yaml(Path("a\0b"), "job")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert plain(read_yaml(path, "job").root) == {"name": "x"}


def test_places() -> None:
    node = parse("a:\n  b: [1,\n      2]\n", "f")
    assert node is not None
    inner = node.get("a")
    assert inner is not None
    leaf = inner.get("b")
    assert leaf is not None
    assert (leaf.key_where, leaf.where) == ("f:2:3", "f:2:6")
    assert isinstance(leaf.value, list)
    assert leaf.value[1].where == "f:3:7"


TREES = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)


def overlaid(base: Any, over: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {
        k: overlaid(base[k], over[k]) if k in base and k in over else over.get(k, base.get(k)) for k in {**base, **over}
    }


@settings(max_examples=150, deadline=None)
@given(TREES, TREES)
def test_merging(base: Any, over: Any) -> None:
    merged = merge(from_value(base, "base"), from_value(over, "over"))
    assert plain(merged) == overlaid(base, over)


def test_an_override_brings_its_place() -> None:
    merged = merge(from_value({"a": {"b": 1, "c": 2}}, "file"), nested(["a", "b"], Node(3, "--set")))
    inner = merged.get("a")
    assert inner is not None
    assert {key: child.where for key, child in inner.value.items()} == {"b": "--set", "c": "file"}  # type: ignore[union-attr]


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="ab:-[]{},&*!|>'\"%@`#\\ \n\t01.~?x", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(SpecError):
        parse(text, "f")
