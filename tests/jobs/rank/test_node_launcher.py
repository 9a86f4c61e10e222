"""The command that starts a node's ranks."""

import pytest

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank.node_launcher import launcher


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ("", True),
        ("--mixed_precision bf16", True),
        ("--use_fsdp", False),
        ("--config_file a.yaml", False),
        ("--cpu", False),
    ],
)
def test_accelerate_is_told_one_kind_of_run(options, kind):
    settings = {"workload": "command", "command": "t.py", "launcher": "accelerate", "launcher_options": options}
    command = launcher(complete(settings | {"ranks_per_node": 2, "device": "cuda"}), 0, "127.0.0.1", "29500")
    assert ("--multi_gpu" in command) is kind
    assert options.split() == [word for word in command if word in options.split()]
