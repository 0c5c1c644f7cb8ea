// The fast kernels, written once for any vector width. A vector `V` holds 16 bytes of each of `V::rows` rows of the matrix,
// one row per 128-bit lane; four partial sums of a row lie in its lane. Included by one file per instruction set.
#pragma once

#include <immintrin.h>

#include "formats.h"

// Each of those files is compiled for other instructions: the linker must not take one's functions for the other's.
namespace {
using namespace kernels;

constexpr size_t CACHE_LINE = 64;

// The same block of `V::rows` rows; behind the last row, the last one stands in.
template <class V> struct Rows {
    const uint8_t *at[V::rows];

    Rows(const Call &call, int row) {
        for (int i = 0; i < V::rows; i++)
            at[i] = call.weights + (row + i < call.last ? row + i : call.last - 1) * call.row_bytes;
    }
    void next(int bytes) {
        for (auto &p : at) p += bytes;
    }
};

// Asks for the rows that come next, a block's share with every block. What lies behind the matrix is never touched.
template <class V> void prefetch(const Call &call, int row, int block, int block_bytes) {
    const size_t share = size_t(block_bytes) * V::rows;
    const auto ahead = reinterpret_cast<uintptr_t>(call.weights) + (row + V::rows) * call.row_bytes + block * share;
    for (size_t at = 0; at < share; at += CACHE_LINE) _mm_prefetch(reinterpret_cast<const char *>(ahead + at), _MM_HINT_T0);
}

// ---- Formats of 32 values: what a block of `V::rows` rows is once decoded.

template <class V> struct DecodeQ8_0 {
    using Weights = typename V::Wide;
    static constexpr Type type = Q8_0;
    static constexpr int bytes = 34, offset = V::wide_offset;
    static constexpr bool has_minimum = false;
    static typename V::Float scale(const Rows<V> &p) { return V::halves(p.at, 0); }
    static Weights low(const Rows<V> &p) { return V::wide(V::load(p.at, 2)); }
    static Weights high(const Rows<V> &p) { return V::wide(V::load(p.at, 18)); }
};

template <class V, bool MINIMUM> struct DecodeQ4 {
    using Weights = typename V::Int;
    static constexpr Type type = MINIMUM ? Q4_1 : Q4_0;
    static constexpr int head = MINIMUM ? 4 : 2, bytes = head + 16, offset = MINIMUM ? 0 : 8;
    static constexpr bool has_minimum = MINIMUM;
    static typename V::Float scale(const Rows<V> &p) { return V::halves(p.at, 0); }
    static Weights low(const Rows<V> &p) { return V::and_(V::load(p.at, head), V::bytes(15)); }
    static Weights high(const Rows<V> &p) { return V::and_(V::template right<4>(V::load(p.at, head)), V::bytes(15)); }
};

template <class V, bool MINIMUM> struct DecodeQ5 {
    using Weights = typename V::Int;
    static constexpr Type type = MINIMUM ? Q5_1 : Q5_0;
    static constexpr int head = MINIMUM ? 4 : 2, bytes = head + 20, offset = MINIMUM ? 0 : 16;
    static constexpr bool has_minimum = MINIMUM;
    static typename V::Float scale(const Rows<V> &p) { return V::halves(p.at, 0); }
    static Weights low(const Rows<V> &p) {
        return V::or_(V::and_(V::load(p.at, head + 4), V::bytes(15)), V::fifth_bits(p.at, head));
    }
    static Weights high(const Rows<V> &p) {
        const auto nibbles = V::and_(V::template right<4>(V::load(p.at, head + 4)), V::bytes(15));
        return V::or_(nibbles, V::fifth_bits(p.at, head + 2));
    }
};

template <class V> struct DecodeIQ4_NL {
    using Weights = typename V::Wide;
    static constexpr Type type = IQ4_NL;
    static constexpr int bytes = 18, offset = V::wide_offset;
    static constexpr bool has_minimum = false;
    static typename V::Float scale(const Rows<V> &p) { return V::halves(p.at, 0); }
    static Weights look_up(typename V::Int nibbles) {
        return V::wide(V::shuffle(V::broadcast(IQ4_VALUES), V::and_(nibbles, V::bytes(15))));
    }
    static Weights low(const Rows<V> &p) { return look_up(V::load(p.at, 2)); }
    static Weights high(const Rows<V> &p) { return look_up(V::template right<4>(V::load(p.at, 2))); }
};

template <class V> struct DecodeMXFP4 {
    using Weights = typename V::Int;
    static constexpr Type type = MXFP4;
    static constexpr int bytes = 17, offset = FP4_OFFSET;
    static constexpr bool has_minimum = false;
    static typename V::Float scale(const Rows<V> &p) { return V::powers(p.at, 0); }
    static Weights look_up(typename V::Int nibbles) {
        const auto values = V::shuffle(V::broadcast(FP4_VALUES), V::and_(nibbles, V::bytes(15)));
        return V::add8(values, V::bytes(FP4_OFFSET));
    }
    static Weights low(const Rows<V> &p) { return look_up(V::load(p.at, 1)); }
    static Weights high(const Rows<V> &p) { return look_up(V::template right<4>(V::load(p.at, 1))); }
};

template <class V, class Decode, int N> void multiply32(const Call &call) {
    for (int row = call.first; row < call.last; row += V::rows) {
        Rows<V> p(call, row);
        const auto *a = static_cast<const Column32 *>(call.columns);
        typename V::Float sum[N];
        for (auto &s : sum) s = V::zero();
        for (int b = 0; b < call.blocks; b++, a += N, p.next(Decode::bytes)) {
            prefetch<V>(call, row, b, Decode::bytes);
            const auto low = Decode::low(p), high = Decode::high(p);
            const auto d = Decode::scale(p);
            typename V::Float minimum;
            if constexpr (Decode::has_minimum) minimum = V::halves(p.at, 2);
#pragma GCC unroll 8
            for (int c = 0; c < N; c++) {
                auto dots = Decode::offset ? V::broadcast(a[c].start) : V::none();
                dots = V::dot(dots, low, V::broadcast(a[c].q));
                dots = V::dot(dots, high, V::broadcast(a[c].q + 16));
                sum[c] = V::fma(V::to_float(dots), V::mul(d, V::same(a[c].d)), sum[c]);
                if constexpr (Decode::has_minimum) sum[c] = V::fma(minimum, V::lanes(a[c].minimum), sum[c]);
            }
        }
        for (int c = 0; c < N; c++) V::store(sum[c], call.out[c] + row, call.last - row);
    }
}

template <class V, class Decode> void kernel32(const Call &call) {
    switch (call.n) {
        case 1: return multiply32<V, Decode, 1>(call);
        case 2: return multiply32<V, Decode, 2>(call);
        case 3: return multiply32<V, Decode, 3>(call);
        case 4: return multiply32<V, Decode, 4>(call);
        case 5: return multiply32<V, Decode, 5>(call);
        case 6: return multiply32<V, Decode, 6>(call);
        case 7: return multiply32<V, Decode, 7>(call);
        default: return multiply32<V, Decode, 8>(call);
    }
}

// ---- Formats of 256 values. A block is decoded into 16 or 8 vectors; columns take their turn on them.

inline __m128i scales_and_minimums(const uint8_t *p) {  // 8 scales and 8 minimums of six bits, one byte each
    uint32_t u[3];
    __builtin_memcpy(u, p, 12);
    const uint32_t scales = u[0] & 0x3f3f3f3f, minimums = u[1] & 0x3f3f3f3f;
    const uint32_t scales_too = (u[2] & 0x0f0f0f0f) | (u[0] >> 6 & 0x03030303) << 4;
    const uint32_t minimums_too = (u[2] >> 4 & 0x0f0f0f0f) | (u[1] >> 6 & 0x03030303) << 4;
    return _mm_set_epi32(int(minimums_too), int(minimums), int(scales_too), int(scales));
}

template <class V, bool FIFTH> void kernel_q4_q5_K(const Call &call) {
    constexpr int bytes = FIFTH ? 176 : 144, nibbles_at = FIFTH ? 48 : 16;
    using Int = typename V::Int;
    for (int row = call.first; row < call.last; row += V::rows) {
        Rows<V> p(call, row);
        const auto *a = static_cast<const Column256 *>(call.columns);
        typename V::Float sum[MOST_TILE];
        for (int c = 0; c < call.n; c++) sum[c] = V::zero();
        for (int b = 0; b < call.blocks; b++, p.next(bytes)) {
            prefetch<V>(call, row, b, bytes);
            Int q[16], scale[8];  // [32 values][16 of them], [32 values]
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                [[maybe_unused]] Int fifth;
                if constexpr (FIFTH) fifth = V::load(p.at, 16 + 16 * h);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    const Int both = V::load(p.at, nibbles_at + 32 * j + 16 * h);
                    q[4 * j + h] = V::and_(both, V::bytes(15));
                    q[4 * j + 2 + h] = V::and_(V::template right<4>(both), V::bytes(15));
                    if constexpr (FIFTH) {
                        q[4 * j + h] = V::or_(q[4 * j + h], V::and_(V::shift_to_4(fifth, 2 * j), V::bytes(16)));
                        q[4 * j + 2 + h] = V::or_(q[4 * j + 2 + h], V::and_(V::shift_to_4(fifth, 2 * j + 1), V::bytes(16)));
                    }
                }
            }
            const Int both = V::gather(p.at, 4, scales_and_minimums);
#pragma GCC unroll 8
            for (int s = 0; s < 8; s++) scale[s] = V::shuffle(both, V::unsigned_scale(s));
            const Int minimums = V::shuffle(both, V::upper_bytes_to_words());
            const auto d = V::halves(p.at, 0), dmin = V::halves(p.at, 2);
#pragma GCC unroll 1
            for (int c = 0; c < call.n; c++, a++) {
                Int even = V::none(), odd = V::none();
#pragma GCC unroll 8
                for (int s = 0; s < 8; s += 2) {
                    even = V::scaled_dot(even, q[2 * s], q[2 * s + 1], a->q + 32 * s, scale[s]);
                    odd = V::scaled_dot(odd, q[2 * s + 2], q[2 * s + 3], a->q + 32 * s + 32, scale[s + 1]);
                }
                auto t = V::mul(V::to_float(V::add32(even, odd)), d);
                t = V::negated_fma(V::to_float(V::madd16(minimums, V::broadcast(a->sums32))), dmin, t);
                sum[c] = V::fma(t, V::same(a->d), sum[c]);
            }
        }
        for (int c = 0; c < call.n; c++) V::store(sum[c], call.out[c] + row, call.last - row);
    }
}

template <class V> void kernel_q6_K(const Call &call) {
    constexpr int bytes = 210;
    using Int = typename V::Int;
    for (int row = call.first; row < call.last; row += V::rows) {
        Rows<V> p(call, row);
        const auto *columns = static_cast<const Column256 *>(call.columns);
        typename V::Float sum[MOST_TILE];
        for (int c = 0; c < call.n; c++) sum[c] = V::zero();
        for (int b = 0; b < call.blocks; b++, columns += call.n, p.next(bytes)) {
            prefetch<V>(call, row, b, bytes);
            const Int all = V::load(p.at, 192), sign = V::negative8(all);
            const auto d = V::halves(p.at, 208);
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const Int scales = h ? V::unpack_high(all, sign) : V::unpack_low(all, sign);
                Int q[8], scale[8];  // 16 values each
#pragma GCC unroll 2
                for (int i = 0; i < 2; i++) {
                    const Int a0 = V::load(p.at, 64 * h + 16 * i), a1 = V::load(p.at, 64 * h + 32 + 16 * i);
                    const Int high = V::load(p.at, 128 + 32 * h + 16 * i), m4 = V::bytes(15), m2 = V::bytes(0x30);
                    q[0 + i] = V::or_(V::and_(a0, m4), V::and_(V::template left<4>(high), m2));
                    q[2 + i] = V::or_(V::and_(a1, m4), V::and_(V::template left<2>(high), m2));
                    q[4 + i] = V::or_(V::and_(V::template right<4>(a0), m4), V::and_(high, m2));
                    q[6 + i] = V::or_(V::and_(V::template right<4>(a1), m4), V::and_(V::template right<2>(high), m2));
                }
#pragma GCC unroll 8
                for (int s = 0; s < 8; s++) scale[s] = V::shuffle(scales, V::signed_scale(s));
                const Column256 *a = columns;
#pragma GCC unroll 1
                for (int c = 0; c < call.n; c++, a++) {
                    const Int offsets = V::template left32<5>(V::madd16(scales, V::broadcast(a->sums16 + 8 * h)));
                    Int even = V::sub32(V::none(), offsets), odd = V::none();
#pragma GCC unroll 8
                    for (int s = 0; s < 8; s += 2) {
                        even = V::scaled_dot(even, q[s], a->q + 128 * h + 16 * s, scale[s]);
                        odd = V::scaled_dot(odd, q[s + 1], a->q + 128 * h + 16 * s + 16, scale[s + 1]);
                    }
                    sum[c] = V::fma(V::to_float(V::add32(even, odd)), V::mul(d, V::same(a->d)), sum[c]);
                }
            }
        }
        for (int c = 0; c < call.n; c++) V::store(sum[c], call.out[c] + row, call.last - row);
    }
}

template <class V, class Decode> constexpr void add(Instructions &table) {
    table.kernel[Decode::type] = kernel32<V, Decode>;
    table.offset[Decode::type] = Decode::offset;
}

template <class V> constexpr Instructions table(const char *name) {
    Instructions t{name, {}, {}};
    add<V, DecodeQ8_0<V>>(t), add<V, DecodeIQ4_NL<V>>(t), add<V, DecodeMXFP4<V>>(t);
    add<V, DecodeQ4<V, false>>(t), add<V, DecodeQ4<V, true>>(t);
    add<V, DecodeQ5<V, false>>(t), add<V, DecodeQ5<V, true>>(t);
    t.kernel[Q4_K] = kernel_q4_q5_K<V, false>, t.kernel[Q5_K] = kernel_q4_q5_K<V, true>, t.kernel[Q6_K] = kernel_q6_K<V>;
    return t;
}

}  // namespace
