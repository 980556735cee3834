"""What a rank holds in host memory as it starts and as it resumes, with real ranks."""

import json
from pathlib import Path

import pytest

from tests.local.programs.ranks import PROGRAMS, started
from tests.patience import PATIENCE

pytestmark = pytest.mark.timeout(300)


def told(ranks: int, program: str, folder: Path) -> list[dict]:
    with started(ranks, [str(PROGRAMS / program)], folder) as begun:
        ended = begun.wait(PATIENCE)
    assert [rank.code for rank in ended] == [0] * ranks, ended
    return [json.loads((folder / f"told.{rank}.json").read_text()) for rank in range(ranks)]


def test_of_fsdp_only_rank_0_ever_holds_the_whole_model(tmp_path: Path) -> None:
    ranks = told(3, "parted.py", tmp_path)
    assert 128 < ranks[0]["peak_mib"] < 250, ranks  # the whole model, and its part of it
    for rank in ranks[1:]:
        assert 128 / 3 < rank["peak_mib"] < 110, ranks  # its part, a block, and a weight on its way
        assert rank["tensors"] == ranks[0]["tensors"]  # buffers and attributes, drawn by rank 0
    assert {rank["refused"].partition(":")[0] for rank in ranks} == {
        "rank 1 has another model than rank 0 (0.bias [3] torch.float32)"
    }


def test_the_ranks_of_a_host_map_one_copy_of_a_checkpoint_until_it_is_loaded(tmp_path: Path) -> None:
    ranks = told(2, "mapped.py", tmp_path)
    assert len({inode for rank in ranks for inode in rank["while_loaded"]}) == 1
    assert all(rank["while_loaded"] and not rank["after"] for rank in ranks)
    assert ranks[0]["sums"] == ranks[1]["sums"]
