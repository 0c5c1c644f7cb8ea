"""Kernels of our own for products of a quantised matrix with a few columns, and the back end that has them.

A verifying pass reads every weight once, as a pass over one row does, and on the hardware it should cost little more.
llama.cpp's kernels decode each weight once per row; these decode it once. The C++ is in `source/`: `build` compiles it,
`library` loads it after a look at whether it fits, `trial` compares it with ggml, `choice` finds where it is faster.
It is an extra: where anything about it is odd, it is off, with the reason, and llama.cpp computes as ever.
"""
