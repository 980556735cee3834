"""Samples that are looked at again and again: each line is read once, whatever becomes of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.agent.sampling.ring_file import SampleFile
from orchestrator.protocol.layout import samples_file
from orchestrator.protocol.samples import RankSample, Sample
from orchestrator.runs.files import sample_looks
from orchestrator.runs.files.sample_looks import SampleLooks
from orchestrator.runs.files.samples import read_samples
from orchestrator.runs.store import RunDir


def sample(number: int) -> Sample:
    return Sample(time=10.0 + 2 * number, seconds=2.0, cpu=1.0, cores=4, ranks=(RankSample(0, cpu=0.5),))


def cpu_seconds(of: Sample) -> float:
    return of.cpu * of.seconds


def folder(path: Path, node: int = 0) -> str:
    made = path / "nodes" / str(node)
    made.mkdir(parents=True, exist_ok=True)
    return samples_file(str(made))


def test_each_look_adds_what_was_appended_also_when_a_half_is_full(tmp_path: Path) -> None:
    file, looks = SampleFile(folder(tmp_path), half=600), SampleLooks(RunDir(tmp_path))
    assert looks.look() == ()
    for number in range(20):
        file.append(sample(number))
        (node,) = looks.look()
        assert node.samples == tuple(sample(each) for each in range(number + 1))
    (kept,) = read_samples(RunDir(tmp_path))
    assert len(kept.samples) < 20  # the file has dropped its older half meanwhile


def test_a_look_reads_only_what_is_new_and_a_torn_line_once_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, looks, made = folder(tmp_path), SampleLooks(RunDir(tmp_path)), list[bytes]()
    real = sample_looks.sample_of
    monkeypatch.setattr(sample_looks, "sample_of", lambda line: [made.append(line), real(line)][1])
    SampleFile(path).append(sample(0))
    assert len(looks.look()[0].samples) == 1
    with open(path, "ab") as file:
        file.write(b'{"time": 1')
        file.flush()
        assert len(looks.look()[0].samples) == 1
        file.write(b'4.0, "seconds": 2}\n')
    made.clear()
    assert [each.time for each in looks.look()[0].samples] == [10.0, 14.0]
    assert [line for line in made if line] == [b'{"time": 14.0, "seconds": 2}']
    made.clear()
    looks.look()
    assert made == []


def test_a_first_look_reads_the_newest_of_both_halves_and_many_samples_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SampleFile(folder(tmp_path), half=2000)
    for number in range(40):
        file.append(sample(number))
    monkeypatch.setattr(sample_looks, "LEAST_BYTES", 2500)
    monkeypatch.setattr(sample_looks, "MOST_BYTES", 2500)
    (node,) = SampleLooks(RunDir(tmp_path)).look()
    assert 15 < len(node.samples) < 40
    assert node.samples == tuple(sample(each) for each in range(40 - len(node.samples), 40))
    monkeypatch.setattr(sample_looks, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(sample_looks, "LEAST_KEPT", 20)
    monkeypatch.setattr(sample_looks, "MOST_KEPT", 20)
    (whole,) = SampleLooks(RunDir(tmp_path)).look()
    (read,) = read_samples(RunDir(tmp_path))
    assert whole.samples[-5:] == read.samples[-5:]
    assert len(whole.samples) < len(read.samples)
    assert sum(map(cpu_seconds, whole.samples)) == sum(map(cpu_seconds, read.samples))


def test_a_file_that_is_another_one_is_read_anew(tmp_path: Path) -> None:
    path, looks = folder(tmp_path), SampleLooks(RunDir(tmp_path))
    for number in range(3):
        SampleFile(path).append(sample(number))
    assert len(looks.look()[0].samples) == 3
    Path(path).rename(f"{path}.away")
    SampleFile(path).append(sample(7))
    assert looks.look()[0].samples == (sample(7),)
