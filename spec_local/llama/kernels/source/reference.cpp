// The arithmetic of every format, written down plainly. The fast kernels give these very bits.
#include <cmath>
#include <cstring>

#include "formats.h"

namespace kernels {
namespace {

float half(const uint8_t *p) {
    const uint32_t bits = p[0] | p[1] << 8, sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 0) return std::ldexp(sign ? -float(fraction) : float(fraction), -24);
    const uint32_t quiet = exponent == 31 && fraction ? 0x400000 : 0;
    const uint32_t single = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13 | quiet;
    float value;
    std::memcpy(&value, &single, 4);
    return value;
}

// 2^(e − 128), as ggml has it: e = 0 and 1 are denormal.
float power(uint8_t e) { return std::ldexp(1.0f, int(e) - 128); }

// A block of 32 values: scale, minimum and integers.
struct Block32 {
    float d, minimum = 0;
    int q[32];
};

Block32 decode32(Type type, const uint8_t *p) {
    Block32 block;
    const bool has_minimum = type == Q4_1 || type == Q5_1, fifth = type == Q5_0 || type == Q5_1;
    const uint8_t *at = p + (type == MXFP4 ? 1 : has_minimum ? 4 : 2);
    block.d = type == MXFP4 ? power(p[0]) : half(p);
    if (has_minimum) block.minimum = half(p + 2);
    const uint8_t *nibbles = fifth ? at + 4 : at;
    for (int i = 0; i < 32; i++) {
        if (type == Q8_0) {
            block.q[i] = int8_t(at[i]);
            continue;
        }
        int q = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
        if (fifth) q |= (at[i / 8] >> i % 8 & 1) << 4;
        block.q[i] = type == Q4_0     ? q - 8
                     : type == Q5_0   ? q - 16
                     : type == IQ4_NL ? IQ4_VALUES[q]
                     : type == MXFP4  ? FP4_VALUES[q]
                                      : q;
    }
    return block;
}

void row32(Type type, int block_bytes, const Call &call, int row, int c, float sum[4]) {
    const auto *a = static_cast<const Column32 *>(call.columns) + c;
    for (int b = 0; b < call.blocks; b++, a += call.n) {
        const Block32 w = decode32(type, call.weights + row * call.row_bytes + size_t(b) * block_bytes);
        int32_t part[4] = {};
        for (int i = 0; i < 32; i++) part[i % 16 / 4] += w.q[i] * a->q[i];
        for (int j = 0; j < 4; j++) {
            sum[j] = std::fma(float(part[j]), w.d * a->d, sum[j]);
            if (type == Q4_1 || type == Q5_1) sum[j] = std::fma(w.minimum, a->minimum[j], sum[j]);
        }
    }
}

// Six-bit scale and minimum of 32 values.
void scale_and_minimum(const uint8_t *p, int s, int &scale, int &minimum) {
    if (s < 4) {
        scale = p[s] & 63, minimum = p[s + 4] & 63;
    } else {
        scale = (p[s + 4] & 15) | p[s - 4] >> 6 << 4;
        minimum = p[s + 4] >> 4 | p[s] >> 6 << 4;
    }
}

void row_q4_q5_K(Type type, const Call &call, int row, int c, float sum[4]) {
    const int bytes = type == Q5_K ? 176 : 144;
    const auto *a = static_cast<const Column256 *>(call.columns) + c;
    for (int b = 0; b < call.blocks; b++, a += call.n) {
        const uint8_t *p = call.weights + row * call.row_bytes + size_t(b) * bytes;
        const uint8_t *nibbles = p + (type == Q5_K ? 48 : 16);
        int32_t part[4] = {}, minimums[4] = {};
        for (int s = 0; s < 8; s++) {
            int scale, minimum;
            scale_and_minimum(p + 4, s, scale, minimum);
            for (int i = 0; i < 32; i++) {
                int q = nibbles[s / 2 * 32 + i] >> s % 2 * 4 & 15;
                if (type == Q5_K) q |= (p[16 + i] >> s & 1) << 4;
                part[i % 16 / 4] += scale * q * a->q[32 * s + i];
            }
            minimums[s / 2] += minimum * a->sums32[s];
        }
        for (int j = 0; j < 4; j++) {
            const float t = std::fma(-float(minimums[j]), half(p + 2), float(part[j]) * half(p));
            sum[j] = std::fma(t, a->d, sum[j]);
        }
    }
}

void row_q6_K(const Call &call, int row, int c, float sum[4]) {
    const auto *a = static_cast<const Column256 *>(call.columns) + c;
    for (int b = 0; b < call.blocks; b++, a += call.n) {
        const uint8_t *p = call.weights + row * call.row_bytes + size_t(b) * 210;
        for (int h = 0; h < 2; h++) {
            int32_t part[4] = {};
            for (int s = 0; s < 8; s++) {  // 16 values each
                const int scale = int8_t(p[192 + 8 * h + s]);
                for (int i = 0; i < 16; i++) {
                    const int at = 16 * (s % 2) + i, quarter = s / 2;
                    const int low = p[64 * h + 32 * (quarter % 2) + at] >> quarter / 2 * 4 & 15;
                    const int high = p[128 + 32 * h + at] >> 2 * quarter & 3;
                    part[i / 4] += scale * (low | high << 4) * a->q[128 * h + 16 * s + i];
                }
                part[s / 2] -= 32 * scale * a->sums16[8 * h + s];
            }
            for (int j = 0; j < 4; j++) sum[j] = std::fma(float(part[j]), half(p + 208) * a->d, sum[j]);
        }
    }
}

template <Type type> void multiply(const Call &call) {
    for (int row = call.first; row < call.last; row++)
        for (int c = 0; c < call.n; c++) {
            float sum[4] = {};
            if (type == Q6_K) row_q6_K(call, row, c, sum);
            else if (type == Q4_K || type == Q5_K) row_q4_q5_K(type, call, row, c, sum);
            else row32(type, format_of(type)->block_bytes, call, row, c, sum);
            call.out[c][row] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        }
}

constexpr Instructions table() {
    Instructions t{"reference", {}, {}};
    t.kernel[Q8_0] = multiply<Q8_0>, t.kernel[Q4_0] = multiply<Q4_0>, t.kernel[Q4_1] = multiply<Q4_1>;
    t.kernel[Q5_0] = multiply<Q5_0>, t.kernel[Q5_1] = multiply<Q5_1>, t.kernel[IQ4_NL] = multiply<IQ4_NL>;
    t.kernel[MXFP4] = multiply<MXFP4>, t.kernel[Q4_K] = multiply<Q4_K>, t.kernel[Q5_K] = multiply<Q5_K>;
    t.kernel[Q6_K] = multiply<Q6_K>;
    return t;
}

}  // namespace

extern const Instructions REFERENCE = table();

}  // namespace kernels
