"""What brings a command to a node of a Slurm job."""

from __future__ import annotations

from orchestrator.backends.slurm.job import in_allocation

ODD = ["sh", "-c", 'echo "$1"', "it's; rm -rf ~", "a b"]


def test_in_slurm_it_is_a_step_beside_the_agents_on_that_node() -> None:
    assert in_allocation("17", 2, ODD, terminal=True) == [
        *(
            "srun",
            "--jobid=17",
            "--export=ALL",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            "--relative=2",
            "--mem=0",
            "--pty",
            *ODD,
        )
    ]
    assert "--pty" not in in_allocation("17", 0, ["true"], terminal=False)
