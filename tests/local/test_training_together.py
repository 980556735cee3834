"""The helpers for scripts of one's own, with real ranks of different lengths, and alone."""

from pathlib import Path

from tests.local.programs.ranks import PROGRAMS, run

MEETING = str(PROGRAMS / "meeting.py")


def test_ranks_do_things_together(tmp_path: Path) -> None:
    ended = run(3, [MEETING], tmp_path)
    assert [rank.code for rank in ended] == [0, 0, 0], ended
    assert ended[0].out.splitlines() == [
        "once 0",
        "everywhere 0",
        *(f"[{rank}] I am {rank} of 3" for rank in range(3)),
        "2 of 3 ranks have one batch more than the others, which is left out",
        "quiet 0",
        "forced 0",
    ]
    assert [rank.out for rank in ended[1:]] == [f"everywhere {rank}\nforced {rank}\n" for rank in (1, 2)]


def test_a_process_alone_does_them_too(tmp_path: Path) -> None:
    [ended] = run(1, [MEETING, "alone"], tmp_path)
    assert ended.code == 0, ended
    assert ended.out.splitlines() == ["once 0", "everywhere 0", "[0] I am 0 of 1", "quiet 0", "forced 0"]
