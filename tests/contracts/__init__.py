"""One test for each private API that the package rests on: on a new PyTorch or JAX they say which promise broke."""
