"""Errors of compiling for a TPU."""


class LibtpuMissingError(ImportError):
    """libtpu, which compiles for TPUs, is not installed."""


class CompilerError(RuntimeError):
    """A program was refused for another reason than memory, by JAX's translation or by libtpu, or libtpu ended its
    process."""
