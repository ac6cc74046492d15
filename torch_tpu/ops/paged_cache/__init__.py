"""Attention over a paged cache on TPUs; README.md has the layouts."""
