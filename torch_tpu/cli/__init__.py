"""The ``torch-tpu`` command."""
