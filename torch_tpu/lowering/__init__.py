"""aten operators as pure JAX functions, a family a file; ``registry`` is the table."""
