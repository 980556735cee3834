"""docs/failures.md: each row of its table names the kinds of cluster on which a test of this suite brings it about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCAL, SSH, SLURM = "tests/local/", "tests/cluster/test_ssh", "tests/cluster/test_slurm"
ALONE = "tests/unit/"  # the part that does it, and no run

# In the order of the rows: the tests that bring it about.
TESTS = {
    "a rank raises": ("tests/local/test_failures.py::test_the_culprit_is_named_and_not_its_victims",
                      "tests/cluster/test_slurm.py::test_a_program_that_fails_is_the_users_error"),
    "a rank's GPU or driver fails (ECC, NVLink, Xid, no fabric manager), or the network under NCCL": (
        "tests/local/test_launcher.py::test_all_of_an_errors_lines_reach_the_verdict",
        "tests/cluster/test_ssh_elastic.py::test_a_machine_whose_gpu_fails_is_not_used_again_where_there_is_a_spare"),
    "a rank exits with 17": ("tests/local/test_failures.py::test_the_culprit_is_named_and_not_its_victims",),
    "a rank exits with 93": ("tests/local/test_failures.py::test_exit_93_is_not_started_again",),
    "a rank is killed, or crashes": ("tests/local/test_failures.py::test_the_culprit_is_named_and_not_its_victims",
                                     "tests/cluster/test_ssh_faults.py::test_kill_9_costs_a_restart_and_no_more"),
    "the kernel kills a rank for memory": (
        "tests/local/test_floods.py::test_a_rank_that_the_kernel_kills_for_memory_is_named_so",),
    "a rank stands still": (
        "tests/local/test_hangs.py::test_the_rank_that_stands_still_is_blamed_and_the_gang_restarted",),
    "a launcher is killed": ("tests/local/test_failures.py::test_a_lost_launcher_is_started_again",
                             "tests/cluster/test_ssh_faults.py::test_kill_9_costs_a_restart_and_no_more"),
    "a launcher is frozen (SIGSTOP)":
        ("tests/local/test_failures.py::test_a_frozen_launcher_is_ended_and_the_gang_starts_again",),
    "an agent is killed": ("tests/local/test_failures.py::test_kill_9_leaves_no_rank",
                           "tests/cluster/test_ssh_faults.py::test_kill_9_costs_a_restart_and_no_more",
                           "tests/cluster/test_slurm.py::test_an_agent_that_is_killed_costs_one_restart"),
    "node 0's agent is killed": ("tests/local/test_failures.py::test_kill_9_leaves_no_rank",),
    "an agent is killed, or a machine lost, after all ranks have ended well, or after its own have": (
        "tests/cluster/test_ssh_ends.py::test_a_node_that_only_the_controller_can_not_reach_at_the_end",
        "tests/unit/node/agent/test_leader.py::test_a_node_that_is_lost_after_its_last_rank_ended_well_takes_nothing_back"),
    "a path between two nodes takes small packets only (another MTU on the way)": (
        "tests/cluster/test_ssh_paths.py::test_a_path_for_small_packets_only_is_named_before_any_rank_starts",
        "tests/unit/node/agent/test_neighbour.py::test_a_path_that_takes_small_packets_only_is_no_way"),
    "nothing gets from one node to another, in one direction or both, and this machine reaches both": (
        "tests/cluster/test_ssh_paths.py::test_a_node_that_hears_nothing_of_node_0_is_replaced_by_a_spare",
        "tests/unit/backends/ssh/test_relaunch.py::"
        "test_without_a_spare_who_can_not_be_reached_is_waited_for_with_the_reason"),
    "the run's folder is removed under an agent": (
        "tests/unit/node/server/test_machine.py::"
        "test_an_agent_whose_folder_was_removed_under_it_is_known_by_what_the_asker_has_recorded",
        "tests/unit/node/system/test_event_log.py::"
        "test_a_folder_that_is_removed_costs_what_was_in_it_and_not_whose_events_these_are",
        "tests/cluster/test_ssh_faults.py::"
        "test_the_runs_folder_removed_on_node_0_is_reported_and_is_no_error_of_the_user"),
    "rank 0 takes longer to save or to evaluate than a step may take, and the others wait for it (a slow disk)": (
        "tests/local/test_hangs.py::test_ranks_that_wait_for_a_slow_save_are_no_hang",
        "tests/unit/node/agent/test_leader.py::"
        "test_no_rank_between_two_steps_is_blamed_while_another_saves_and_a_rank_that_moves_on_never"),
    "the second copy of a checkpoint can't be made, or is late (its path takes small packets only, node 1's disk is "
    "full)": (
        "tests/cluster/test_ssh_paths.py::"
        "test_a_path_that_takes_small_packets_only_in_mid_run_costs_the_second_copies_and_nothing_else",
        "tests/unit/node/agent/checkpoints/test_replica.py::"
        "test_after_a_copy_has_failed_the_next_is_made_in_the_next_attempt"),
    "a node does not join": ("tests/local/test_agents.py::test_the_leader_names_the_node_that_is_missing",),
    "a node can't reach node 0": ("tests/local/test_agents.py::test_a_member_names_the_way_that_does_not_work",),
    "somebody keeps connections open at its ports": (
        "tests/local/test_attacks.py::test_seventy_idle_strangers_and_garbage_at_every_port_change_nothing",),
    "a rendezvous port of the agents is taken": (
        "tests/unit/node/agent/test_channel.py::test_the_first_port_that_is_free_at_all_addresses_is_taken",),
    "all rendezvous ports of the agents are taken": (
        "tests/unit/node/agent/test_channel.py::test_ports_that_are_all_taken_are_named",),
    "the launcher's Python, a setup line or a warm import fails": (
        "tests/local/test_failures.py::test_a_node_that_can_not_start_its_launcher_is_named",
        "tests/local/test_failures.py::test_an_import_that_fails_is_named_before_any_rank_starts",
        "tests/local/test_runs.py::test_a_failing_setup_line_is_named"),
    "a node has no room for another attempt's files (inodes, quota, read-only), no open files or processes left": (
        "tests/local/test_failures.py::test_a_node_that_has_no_room_for_another_attempt_is_named_with_the_reason",
        "tests/local/test_failures.py::test_a_launcher_that_may_open_no_more_files_is_named_with_the_reason"),
    "an input can't be fetched, or has another sha256": ("tests/local/test_runs.py::test_inputs_are_placed_once",),
    "`orch cancel`": ("tests/local/test_runs.py::test_cancel_stops_at_a_boundary_and_proves_it",
                      "tests/cluster/test_ssh.py::test_a_cancel_takes_a_checkpoint_from_which_another_run_goes_on_elsewhere",
                      "tests/cluster/test_slurm.py::test_a_cancel_stops_at_a_boundary_and_proves_it"),
    "TERM, INT or USR2 to an agent": (
        "tests/local/test_failures.py::test_term_to_an_agent_is_a_preemption_with_a_checkpoint",
        "tests/cluster/test_slurm.py::test_a_job_gives_way_to_another_and_comes_back"),
    "a rank ends with 95, none failed": (
        "tests/local/test_failures.py::test_one_rank_that_asks_for_a_requeue_stops_them_all",),
    "`resources.time` is over, restarts included": (
        "tests/local/test_failures.py::test_a_time_limit_stops_at_a_boundary",),
    "the code can't be copied, or the disk is full, at submit": (
        "tests/local/test_runs.py::test_a_submit_that_can_not_ship_its_code_leaves_nothing",),
    "the disk fills up during the run": (
        "tests/local/test_floods.py::test_a_full_disk_costs_the_log_and_not_the_run",
        "tests/cluster/test_ssh_disks.py::test_a_full_disk_costs_no_checkpoint_that_was_there_and_is_named"),
    "the last checkpoint can't be written": (
        "tests/local/test_training_verdicts.py::test_a_script_whose_last_checkpoint_was_refused_has_failed",),
    "other checkpoints can't be written, the last one can": (
        "tests/local/test_training_verdicts.py::"
        "test_a_script_whose_earlier_checkpoint_alone_was_refused_succeeds_with_a_note",),
    "the supervisor is killed": (
        "tests/local/test_drill.py::test_each_kill_is_followed_by_what_is_promised",
        "tests/cluster/test_ssh_faults.py::"
        "test_a_supervisor_killed_at_any_moment_is_brought_back_by_the_next_command_and_adopts_the_run"),
    "the supervisor is stopped (SIGSTOP)": (
        "tests/unit/supervisor/test_supervisor.py::test_one_that_was_stopped_goes_on_with_the_next_command",),
    "the terminal or the submitting command goes away": (
        "tests/local/test_runs.py::test_a_run_survives_its_terminal",),
}  # fmt: skip


def rows() -> list[tuple[str, str]]:
    """What happens, and where it was brought about, of each row of the first table."""
    table = (ROOT / "docs" / "failures.md").read_text().partition("\n\nEverything but success")[0]
    lines = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    return [(cells[0].strip(), re.sub(r" [0-9.]+ s", "", cells[-1]).strip()) for cells in lines]


def test_every_row_is_brought_about_where_it_says() -> None:
    kinds = {"local": LOCAL, "ssh": SSH, "slurm": SLURM, "its part alone": ALONE}
    expected = [
        (what, ", ".join(kind for kind, path in kinds.items() if any(test.startswith(path) for test in tests)))
        for what, tests in TESTS.items()
    ]
    assert rows() == expected


@pytest.mark.parametrize("test", sorted({each for tests in TESTS.values() for each in tests}))
def test_every_test_that_is_named_is_there(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"
