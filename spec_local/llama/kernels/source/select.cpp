// Which of the kernels this processor can run, and the activations they read.
#include <cmath>
#include <cstring>

#include "formats.h"
#include "ggml-cpu.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace kernels {
namespace {

#ifdef __x86_64__
bool has_avx2() {  // these ask the operating system too whether it keeps the registers
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx_vnni() {
    unsigned a = 0, b, c, d;
    return AVX_VNNI.kernel[Q8_0] && has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
struct Candidate {
    const Instructions &instructions;
    bool (*present)();
} const CANDIDATES[] = {{AVX512, has_avx512}, {AVX_VNNI, has_avx_vnni}, {AVX2, has_avx2}};  // best first
#else
struct Candidate {
    const Instructions &instructions;
    bool (*present)();
} const CANDIDATES[] = {{REFERENCE, [] { return false; }}};
#endif

// ggml's own blocks of activations.
struct BlockQ8_0 {
    ggml_fp16_t d;
    int8_t q[32];
};
struct BlockQ8_1 {
    ggml_fp16_t d, sum;
    int8_t q[32];
};
struct BlockQ8_K {
    float d;
    int8_t q[256];
    int16_t sums[16];
};
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ8_1) == 36 && sizeof(BlockQ8_K) == 292, "as in ggml");

template <class Block> void prepare32(ggml_type type, int offset, const float *x, int blocks, Column32 *out, int n) {
    const auto quantise = ggml_get_type_traits_cpu(type)->from_float;
    constexpr int some = 32;
    Block block[some];
    for (int from = 0; from < blocks; from += some) {
        const int count = blocks - from < some ? blocks - from : some;
        quantise(x + size_t(from) * 32, block, int64_t(count) * 32);
        for (int b = 0; b < count; b++) {
            Column32 &column = out[size_t(from + b) * n];
            std::memcpy(column.q, block[b].q, 32);
            std::memset(column.start, 0, sizeof column.start + sizeof column.minimum);
            for (int i = 0; i < 32; i++) column.start[i % 16 / 4] -= offset * block[b].q[i];
            column.d = ggml_fp16_to_fp32(block[b].d);
            if constexpr (sizeof(Block) == sizeof(BlockQ8_1)) column.minimum[0] = ggml_fp16_to_fp32(block[b].sum);
        }
    }
}

void prepare256(const float *x, int blocks, Column256 *out, int n) {
    const auto quantise = ggml_get_type_traits_cpu(GGML_TYPE_Q8_K)->from_float;
    for (int b = 0; b < blocks; b++) {
        BlockQ8_K block;
        quantise(x + size_t(b) * 256, &block, 256);
        Column256 &column = out[size_t(b) * n];
        std::memcpy(column.q, block.q, 256);
        std::memcpy(column.sums16, block.sums, 32);
        for (int i = 0; i < 8; i++) column.sums32[i] = int16_t(block.sums[2 * i] + block.sums[2 * i + 1]);
        column.d = block.d;
    }
}

}  // namespace

const Instructions *best_instructions() {
    for (const Candidate &candidate : CANDIDATES)
        if (candidate.present()) return &candidate.instructions;
    return nullptr;
}

const Instructions *instructions_by(const char *name) {
    if (!std::strcmp(name, REFERENCE.name)) return &REFERENCE;
    for (const Candidate &candidate : CANDIDATES)
        if (!std::strcmp(name, candidate.instructions.name) && candidate.present()) return &candidate.instructions;
    return nullptr;
}

size_t column_bytes(const Format &format) {
    return format.activation == Activation::Q8_K ? sizeof(Column256) : sizeof(Column32);
}

void prepare(const Format &format, int offset, const float *x, int blocks, void *columns, int column, int n) {
    if (format.activation == Activation::Q8_K)
        prepare256(x, blocks, static_cast<Column256 *>(columns) + column, n);
    else if (format.activation == Activation::Q8_1)
        prepare32<BlockQ8_1>(GGML_TYPE_Q8_1, offset, x, blocks, static_cast<Column32 *>(columns) + column, n);
    else
        prepare32<BlockQ8_0>(GGML_TYPE_Q8_0, offset, x, blocks, static_cast<Column32 *>(columns) + column, n);
}

}  // namespace kernels
