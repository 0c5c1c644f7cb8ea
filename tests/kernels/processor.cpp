// Prints the instruction set that the kernels would use on this processor, for a processor that is emulated.
#include <cstdio>

#include "formats.h"
#include "ggml-cpu.h"

extern "C" const ggml_type_traits_cpu *ggml_get_type_traits_cpu(ggml_type) { return nullptr; }  // nothing is multiplied
extern "C" float ggml_fp16_to_fp32(ggml_fp16_t) { return 0; }

int main() {
    const kernels::Instructions *best = kernels::best_instructions();
    std::puts(best ? best->name : "none");
    return kernels::instructions_by("AVX2") && !best;
}
