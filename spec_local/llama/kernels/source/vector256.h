// 256-bit vectors, two rows at a time: AVX2, or AVX2 with AVX-VNNI where the compiler is told so.
#pragma once

#include "vectors.h"

namespace {

#define INLINE static inline __attribute__((always_inline))

struct Vector256 {
    static constexpr int rows = 2;
    using Int = __m256i;
    using Float = __m256;

    INLINE __m128i load16(const void *p) { return _mm_loadu_si128(static_cast<const __m128i *>(p)); }
    INLINE Int load(const uint8_t *const p[rows], int at) { return _mm256_set_m128i(load16(p[1] + at), load16(p[0] + at)); }
    template <class Function> INLINE Int gather(const uint8_t *const p[rows], int at, Function f) {
        return _mm256_set_m128i(f(p[1] + at), f(p[0] + at));
    }
    INLINE Float spread(__m128 v) {  // one value per row into its whole lane
        return _mm256_set_m128(_mm_permute_ps(v, 0x55), _mm_permute_ps(v, 0x00));
    }
    INLINE Float halves(const uint8_t *const p[rows], int at) {
        uint16_t h[2];
        for (int i = 0; i < rows; i++) __builtin_memcpy(&h[i], p[i] + at, 2);
        return spread(_mm_cvtph_ps(_mm_set_epi16(0, 0, 0, 0, 0, 0, short(h[1]), short(h[0]))));
    }
    INLINE Float powers(const uint8_t *const p[rows], int at) {
        int bits[2];
        for (int i = 0; i < rows; i++) bits[i] = p[i][at] < 2 ? 0x200000 << p[i][at] : (p[i][at] - 1) << 23;
        return spread(_mm_castsi128_ps(_mm_set_epi32(0, 0, bits[1], bits[0])));
    }
    INLINE Int fifth_bits(const uint8_t *const p[rows], int at) {  // 16 bits of each row, as 16 in each byte
        uint16_t h[2];
        for (int i = 0; i < rows; i++) __builtin_memcpy(&h[i], p[i] + at, 2);
        const Int both = _mm256_set_m128i(_mm_set1_epi16(short(h[1])), _mm_set1_epi16(short(h[0])));
        const Int own = _mm256_set_epi64x(0x0101010101010101, 0, 0x0101010101010101, 0);
        const Int bit = _mm256_set1_epi64x(int64_t(0x8040201008040201u));
        const Int set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(both, own), bit), bit);
        return _mm256_and_si256(set, bytes(16));
    }
    INLINE Int broadcast(const void *p) { return _mm256_broadcastsi128_si256(load16(p)); }
    INLINE Float lanes(const float *p) { return _mm256_broadcast_ps(reinterpret_cast<const __m128 *>(p)); }
    INLINE Float same(float v) { return _mm256_set1_ps(v); }
    INLINE Int bytes(int v) { return _mm256_set1_epi8(char(v)); }
    INLINE Int none() { return _mm256_setzero_si256(); }
    INLINE Float zero() { return _mm256_setzero_ps(); }
    INLINE Int and_(Int a, Int b) { return _mm256_and_si256(a, b); }
    INLINE Int or_(Int a, Int b) { return _mm256_or_si256(a, b); }
    template <int n> INLINE Int right(Int v) { return _mm256_srli_epi16(v, n); }
    template <int n> INLINE Int left(Int v) { return _mm256_slli_epi16(v, n); }
    template <int n> INLINE Int left32(Int v) { return _mm256_slli_epi32(v, n); }
    INLINE Int shift_to_4(Int v, int bit) {
        return bit < 4 ? _mm256_slli_epi16(v, 4 - bit) : _mm256_srli_epi16(v, bit - 4);
    }
    INLINE Int shuffle(Int table, Int index) { return _mm256_shuffle_epi8(table, index); }
    INLINE Int negative8(Int v) { return _mm256_cmpgt_epi8(none(), v); }
    INLINE Int unpack_low(Int a, Int b) { return _mm256_unpacklo_epi8(a, b); }
    INLINE Int unpack_high(Int a, Int b) { return _mm256_unpackhi_epi8(a, b); }
    INLINE Int add8(Int a, Int b) { return _mm256_add_epi8(a, b); }
    INLINE Int add32(Int a, Int b) { return _mm256_add_epi32(a, b); }
    INLINE Int sub32(Int a, Int b) { return _mm256_sub_epi32(a, b); }
    INLINE Int madd16(Int a, Int b) { return _mm256_madd_epi16(a, b); }
#ifdef __AVXVNNI__
    static constexpr int wide_offset = 128;
    using Wide = Int;  // signed weights, made unsigned by adding 128
    INLINE Wide wide(Int v) { return _mm256_xor_si256(v, bytes(128)); }
    INLINE Int dot(Int sum, Int w, Int a) { return _mm256_dpbusd_avx_epi32(sum, w, a); }
    INLINE Int add_madd16(Int sum, Int a, Int b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
#else
    static constexpr int wide_offset = 0;
    struct Wide {  // signed weights: their size, and themselves for the sign. A pair of products fits 16 bits then.
        Int size, sign;
    };
    INLINE Wide wide(Int v) { return {_mm256_abs_epi8(v), v}; }
    INLINE Int dot(Int sum, Wide w, Int a) { return dot(sum, w.size, _mm256_sign_epi8(a, w.sign)); }
    INLINE Int dot(Int sum, Int w, Int a) {
        return add32(sum, madd16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)));
    }
    INLINE Int add_madd16(Int sum, Int a, Int b) { return add32(sum, madd16(a, b)); }
#endif
    // Pairs of products (twice two of them) fit 16 bits for weights of five (six) bits; the scale is in both words.
    INLINE Int scaled_dot(Int sum, Int w0, Int w1, const int8_t *a, Int scale) {
        const Int both = _mm256_add_epi16(_mm256_maddubs_epi16(w0, broadcast(a)), _mm256_maddubs_epi16(w1, broadcast(a + 16)));
        return add_madd16(sum, both, scale);
    }
    INLINE Int scaled_dot(Int sum, Int w, const int8_t *a, Int scale) {
        return add_madd16(sum, _mm256_maddubs_epi16(w, broadcast(a)), scale);
    }
    INLINE Int unsigned_scale(int s) { return _mm256_set1_epi16(short(0x8000 | s)); }
    INLINE Int signed_scale(int s) { return _mm256_set1_epi16(short((2 * s + 1) << 8 | 2 * s)); }
    INLINE Int upper_bytes_to_words() {
        return _mm256_broadcastsi128_si256(
            _mm_set_epi32(int(0x800f800eu), int(0x800d800cu), int(0x800b800au), int(0x80098008u)));
    }
    INLINE Float to_float(Int v) { return _mm256_cvtepi32_ps(v); }
    INLINE Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    INLINE Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    INLINE Float negated_fma(Float a, Float b, Float c) { return _mm256_fnmadd_ps(a, b, c); }
    INLINE void store(Float v, float *out, int count) {
        v = _mm256_hadd_ps(v, v);
        v = _mm256_hadd_ps(v, v);
        out[0] = _mm256_cvtss_f32(v);
        if (count > 1) out[1] = _mm_cvtss_f32(_mm256_extractf128_ps(v, 1));
    }
};

}  // namespace
