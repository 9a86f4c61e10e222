"""A GPU machine with PyTorch for CUDA and nothing else: see README.md."""
