"""Everything that touches PyTorch's private or version-dependent API. Each use has a contract test."""
