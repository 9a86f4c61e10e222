"""The labelled set: runs whose largest loss is known, because it was put there.

runs.yaml       the runs: settings of the point, what was done to it, and the label
inject.py       what settings cannot do: put into the ranks by the test tooling, never by jobs or analysis
neighbours.py   other processes on the same GPU or cores
run.py          runs them on the GPUs of one host:   python -m tests.labelled.run OUT
store.py        keeps what came back, small:         python -m tests.labelled.store OUT tests/data/labelled
"""
