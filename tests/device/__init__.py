"""The capabilities that a PyTorch backend has to have, a file each; results are compared with device "cpu"."""
