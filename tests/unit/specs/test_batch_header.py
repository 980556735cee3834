"""Each option of sbatch is converted, passed on or refused, and docs/from-sbatch.md says which."""

from __future__ import annotations

import re

import pytest

from orchestrator.errors import UsageError
from orchestrator.specs.batch_header import header_of
from orchestrator.specs.sbatch_options import CONVERTED, FIELDS, ONLY_AS_IT_IS, OPTIONS, OURS, REFUSED
from tests.testbed.layout import REPO

# The options in the public manual pages of sbatch 22.05 and 25.11.
NAMES = """
    account acctg-freq array batch bb bbf begin burst-buffer chdir cluster-constraint clusters comment
    consolidate-segments constraint container container-id contiguous core-spec cores-per-socket cpu-freq
    cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude exclusive export
    export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket
    gpus-per-task gres gres-flags hint hold ignore-pbs input job-name kill-on-invalid-dep licenses mail-type
    mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue nodefile
    nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket oom-kill-step
    open-mode output overcommit oversubscribe parsable partition power prefer priority profile propagate qos
    quiet reboot requeue reservation resv-ports segment signal sockets-per-node spread-job spread-segments
    stepmgr switches test-only thread-spec threads-per-core time time-min tmp tres-bind tres-per-job
    tres-per-task uid use-min-nodes verbose wait wait-all-nodes wckey wrap x11
"""
SBATCH = NAMES.split()


@pytest.mark.parametrize("name", SBATCH)
def test_each_option_has_one_place(name: str) -> None:
    """An option is refused in any file; or it is converted, or refused only by a conversion, or passed on."""
    assert (name in REFUSED) + (name in CONVERTED) + (name in ONLY_AS_IT_IS) + (
        name in OPTIONS and name not in {*REFUSED, *CONVERTED, *ONLY_AS_IT_IS}
    ) == 1


def test_the_tables_have_no_other_options() -> None:
    assert {*REFUSED, *CONVERTED, *ONLY_AS_IT_IS} - {*SBATCH, "cpus"} == set()
    assert {*FIELDS} <= {*CONVERTED}
    assert {*ONLY_AS_IT_IS} <= {*OPTIONS}
    assert not {*CONVERTED} & {*OPTIONS} - {"mem", "gpus"}
    assert OURS


def test_the_page_has_each_option_that_is_not_just_passed_on() -> None:
    page = (REPO / "docs" / "from-sbatch.md").read_text().partition("## The options of sbatch")[2]
    for name, says in {**CONVERTED, **ONLY_AS_IT_IS, **REFUSED}.items():
        row = next((line for line in page.splitlines() if f"`--{name}`" in line.split(" | ")[0]), "")
        assert name == "cpus" or says in row, name


@pytest.mark.parametrize("name", sorted(set(SBATCH) - {*REFUSED} - {"hold"}))
def test_an_option_is_read_with_its_line(name: str) -> None:
    header = header_of(f"#!/bin/bash\n#SBATCH --{name}=1\n")
    assert (header.options, header.lines) == ({name: "1"}, {name: 2})
    header.check()
    if name in ONLY_AS_IT_IS and name != "gpus-per-task":
        with pytest.raises(UsageError, match=re.escape(f"line 2: --{name} is not converted: ")):
            header.for_conversion()


def test_short_options_are_those_of_sbatch() -> None:
    header = header_of(
        "#SBATCH -N2 -n 4 -c8 -p gpu -A a -q high -t 10 -J x -w n1 -x n2 -C big -G 2 -d afterok:1 -H -O -s -k\n"
    )
    assert header.options == {
        "nodes": "2", "ntasks": "4", "cpus-per-task": "8", "partition": "gpu", "account": "a", "qos": "high",
        "time": "10", "job-name": "x", "nodelist": "n1", "exclude": "n2", "constraint": "big", "gpus": "2",
        "dependency": "afterok:1", "hold": "", "overcommit": "", "oversubscribe": "", "no-kill": "",
    }  # fmt: skip
