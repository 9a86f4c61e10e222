"""A real multi-node Slurm on this one host, for the tests."""
