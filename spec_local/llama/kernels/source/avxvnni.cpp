// AVX2 with AVX-VNNI, as processors without AVX-512 have it.
#include "vector256.h"

#ifdef __AVXVNNI__
extern const kernels::Instructions kernels::AVX_VNNI = table<Vector256>("AVX-VNNI");
#else  // the compiler does not know it
extern const kernels::Instructions kernels::AVX_VNNI = {"AVX-VNNI", {}, {}};
#endif
