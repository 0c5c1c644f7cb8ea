// Plain AVX2.
#include "vector256.h"

extern const kernels::Instructions kernels::AVX2 = table<Vector256>("AVX2");
