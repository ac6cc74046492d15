"""``torch.compile(backend="tpu")``: one graph is one XLA program.

=================  ======================================================================================
``backend``        what Dynamo calls: options, AOTAutograd, forward and backward compilers
``evaluate``       an FX graph of aten operators evaluated on JAX arrays, with the lowerings of eager
``operators``      graph operators that are no lowering: views as values, foreach lists, bookkeeping
``inline``         custom operators and the like: their kernels are traced into the graph
``control``        cond, while_loop, scan, associative_scan and other higher-order operators
``rewrite``        graphs made better before they are partitioned: grouped attention, block updates of a cache
``identity``       the text that a graph's program is known by, in this process and in later ones
``runner``         running a graph: operands from tensors, donation of what it overwrites, results as tensors
=================  ======================================================================================

How eager, the program cache and the compiler share their parts: docs/architecture.md.
"""
