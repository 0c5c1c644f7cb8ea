// The weight formats, the activations as the kernels read them, and what a kernel is.
//
// A kernel multiplies a few rows of a matrix with all columns of a pass at a time: each weight block is decoded once and
// used for every column. Of one output, 16 consecutive values at a time are summed by fours into four partial sums; each
// partial sum is an exact integer within a block, and floats are added block by block in the order of the row. So a
// column's result depends neither on how many columns stand beside it, nor on the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kernels {

// Numbers of ggml_type; backend.cpp asserts that they are ggml's.
enum Type : int { Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20, MXFP4 = 39 };
constexpr int TYPES = 40;  // one more than the largest number

// Layout of one weight block in bytes, as ggml has it. Scales are IEEE halves, unless it says otherwise.
//   Q8_0    d, 32 int8                                   value = d·q
//   Q4_0    d, 16 bytes of nibbles                       value = d·(q − 8); low nibbles are values 0–15, high 16–31
//   Q4_1    d, m, 16 bytes of nibbles                    value = d·q + m
//   Q5_0    d, 32 fifth bits, 16 bytes of nibbles        value = d·(q − 16)
//   Q5_1    d, m, 32 fifth bits, 16 bytes of nibbles     value = d·q + m
//   IQ4_NL  d, 16 bytes of nibbles                       value = d·IQ4_VALUES[q]
//   MXFP4   a power of two in one byte, 16 bytes         value = 2^(e − 128)·FP4_VALUES[q]
//   Q4_K    d, dmin, 12 bytes of scales, 128 of nibbles  value = d·sc·q − dmin·m, for each 32 values
//   Q5_K    as Q4_K, 32 bytes of fifth bits in front of the nibbles
//   Q6_K    128 bytes of low, 64 of high bits, 16 int8 sc, d   value = d·sc·(q − 32), for each 16 values
constexpr int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int FP4_OFFSET = 12;

// One block of one column: 32 values, quantised as ggml does (Q8_0, or Q8_1 for formats with a minimum).
struct alignas(16) Column32 {
    int8_t q[32];
    int32_t start[4];  // −(offset the kernel adds to weights) · each partial sum of q
    float minimum[4];  // {d · sum of q, 0, 0, 0} for formats with a minimum, else 0
    float d;
    float padding[3];
};

// One block of one column: 256 values, quantised as ggml's Q8_K.
struct alignas(16) Column256 {
    int8_t q[256];
    int16_t sums32[8];   // of each 32 values
    int16_t sums16[16];  // of each 16 values
    float d;
    float padding[3];
};

// One product of some rows of a matrix with the columns of a tile.
struct Call {
    const uint8_t *weights;  // of row 0
    size_t row_bytes;        // from one row to the next
    int blocks;              // in a row
    int first, last;         // rows
    const void *columns;     // Column32 or Column256 [blocks][n]
    int n;                   // columns, at most the format's `tile`
    float *const *out;       // [n], each to row 0 of its column
};
using Kernel = void (*)(const Call &);

enum class Activation { Q8_0, Q8_1, Q8_K };

struct Format {
    Type type;
    const char *name;
    int values;       // in a block
    int block_bytes;
    Activation activation;
    int tile;         // most columns of one call
};
constexpr Format FORMATS[] = {
    {Q8_0, "Q8_0", 32, 34, Activation::Q8_0, 8},   {Q4_0, "Q4_0", 32, 18, Activation::Q8_0, 8},
    {Q4_1, "Q4_1", 32, 20, Activation::Q8_1, 8},   {Q5_0, "Q5_0", 32, 22, Activation::Q8_0, 8},
    {Q5_1, "Q5_1", 32, 24, Activation::Q8_1, 8},   {IQ4_NL, "IQ4_NL", 32, 18, Activation::Q8_0, 8},
    {MXFP4, "MXFP4", 32, 17, Activation::Q8_0, 8}, {Q4_K, "Q4_K", 256, 144, Activation::Q8_K, 16},
    {Q5_K, "Q5_K", 256, 176, Activation::Q8_K, 16}, {Q6_K, "Q6_K", 256, 210, Activation::Q8_K, 16},
};
constexpr int MOST_TILE = 16;

inline const Format *format_of(int type) {
    for (const Format &format : FORMATS)
        if (format.type == type) return &format;
    return nullptr;
}

// The kernels of one instruction set.
struct Instructions {
    const char *name;
    Kernel kernel[TYPES];
    int offset[TYPES];  // that a kernel adds to weights to make them unsigned
};
extern const Instructions REFERENCE;
#ifdef __x86_64__
extern const Instructions AVX2, AVX_VNNI, AVX512;
#endif
const Instructions *best_instructions();            // that this processor has; null without any
const Instructions *instructions_by(const char *name);  // if this processor has them; null otherwise

// Quantises one column of `blocks` blocks into its place in [block][n].
void prepare(const Format &format, int offset, const float *x, int blocks, void *columns, int column, int n);
size_t column_bytes(const Format &format);  // of one block of one column

}  // namespace kernels
