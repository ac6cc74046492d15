"""Where published kernels import from; what is here is what is public elsewhere."""
