"""The efficiency report, from what sacct printed on a cluster (22.05) and from one that keeps no accounting."""

import pytest
from snakemake_executor_plugin_submitit import efficiency

SACCT = """\
1_0|COMPLETED|5|00:01.075||billing=4,cpu=4,gres/gpu=4,mem=400M,node=2|billing=4,cpu=4,gres/gpu=4,node=2|n[1-2]
1_0.batch|COMPLETED|5|00:01.071|||cpu=2,gres/gpu=2,mem=0,node=1|n1
1_0.0|COMPLETED|2|00:00.004|||cpu=4,gres/gpu=4,mem=0,node=2|n[1-2]
1_1|COMPLETED|6|00:00.931||billing=4,cpu=4,gres/gpu=4,mem=400M,node=2|billing=4,cpu=4,gres/gpu=4,node=2|n[1-2]
1_1.batch|COMPLETED|6|00:00.927|10820K||cpu=2,gres/gpu=2,mem=0,node=1|n1
1_1.0|COMPLETED|1|00:00.004|||cpu=4,gres/gpu=4,mem=0,node=2|n[1-2]
2|FAILED|3|00:00.778||billing=3,cpu=3,mem=200M,node=1|billing=3,cpu=3,node=1|n1
3_[0-3]|PENDING|0|00:00:00||billing=1,cpu=1,mem=100M,node=1||None assigned
4|CANCELLED by 0|2|00:00.002||billing=1,cpu=1,mem=1G,node=1|billing=16,cpu=16,gres/gpu=2,node=1|n1
4.batch|CANCELLED|2|00:00.002|||cpu=16,gres/gpu=2,mem=0,node=1|n1
5_[2-3%4]|CANCELLED by 0|0|00:00:00||billing=10,cpu=10,mem=100M,node=1||None assigned
"""


def test_a_row_for_each_job():
    rows = efficiency.parse(SACCT, {"1_0": "a", "1_1": "a", "2": "b", "4": "c", "5_2": "c", "5_3": "c"})
    assert [tuple(row.values()) for row in rows][1:] == [
        ("1_1", "a", "COMPLETED", "6", "4", 3.9, 200.0, 10.6, "4", "n[1-2]"),
        ("2", "b", "FAILED", "3", "3", 8.6, 200.0, None, None, "n1"),
        ("4", "c", "CANCELLED", "2", "16", 0.0, 1024.0, None, "2", "n1"),
        *((job, "c", "CANCELLED", "0", None, None, 100.0, None, None, "") for job in ("5_2", "5_3")),
    ]


def test_a_job_of_which_the_accounting_has_no_state_yet():
    [row] = efficiency.parse("7||0|00:00:00||billing=1,cpu=1,mem=100M,node=1||", {"7": "a"})
    assert (row["state"], row["elapsed_s"], row["cpus"]) == ("", "0", None)


def test_no_report_without_accounting_or_folder(tmp_path):
    said = []
    efficiency.Report(str(tmp_path / "x.csv"), False, said.append).write(0)
    assert len(said) == 1 and said[0].startswith("submitit-efficiency-report: there will be none")
    with pytest.raises(ValueError, match=r"^submitit-efficiency-report: .*a file in a folder that exists"):
        efficiency.Report(str(tmp_path / "no/x.csv"), True, said.append)
