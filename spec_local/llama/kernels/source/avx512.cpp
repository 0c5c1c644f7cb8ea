// AVX-512 with VNNI: four rows at a time.
#include "vectors.h"

namespace {

#define INLINE static inline __attribute__((always_inline))

struct Vector512 {
    static constexpr int rows = 4, wide_offset = 128;
    using Int = __m512i;
    using Wide = __m512i;  // signed weights, made unsigned by adding 128
    using Float = __m512;

    INLINE Int join(__m128i a, __m128i b, __m128i c, __m128i d) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(b, a)), _mm256_set_m128i(d, c), 1);
    }
    INLINE __m128i load16(const void *p) { return _mm_loadu_si128(static_cast<const __m128i *>(p)); }
    INLINE Int load(const uint8_t *const p[rows], int at) {
        return join(load16(p[0] + at), load16(p[1] + at), load16(p[2] + at), load16(p[3] + at));
    }
    template <class Function> INLINE Int gather(const uint8_t *const p[rows], int at, Function f) {
        return join(f(p[0] + at), f(p[1] + at), f(p[2] + at), f(p[3] + at));
    }
    INLINE Float spread(__m128 v) {  // one value per row into its whole lane
        const Int index = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        return _mm512_permutexvar_ps(index, _mm512_castps128_ps512(v));
    }
    INLINE Float halves(const uint8_t *const p[rows], int at) {
        uint16_t h[4];
        for (int i = 0; i < rows; i++) __builtin_memcpy(&h[i], p[i] + at, 2);
        return spread(_mm_cvtph_ps(_mm_set_epi16(0, 0, 0, 0, short(h[3]), short(h[2]), short(h[1]), short(h[0]))));
    }
    INLINE Float powers(const uint8_t *const p[rows], int at) {
        int bits[4];
        for (int i = 0; i < rows; i++) bits[i] = p[i][at] < 2 ? 0x200000 << p[i][at] : (p[i][at] - 1) << 23;
        return spread(_mm_castsi128_ps(_mm_set_epi32(bits[3], bits[2], bits[1], bits[0])));
    }
    INLINE Int fifth_bits(const uint8_t *const p[rows], int at) {  // 16 bits of each row, as 16 in each byte
        uint16_t h[4];
        for (int i = 0; i < rows; i++) __builtin_memcpy(&h[i], p[i] + at, 2);
        const uint64_t mask = h[0] | uint64_t(h[1]) << 16 | uint64_t(h[2]) << 32 | uint64_t(h[3]) << 48;
        return _mm512_maskz_mov_epi8(mask, bytes(16));
    }
    INLINE Int broadcast(const void *p) { return _mm512_broadcast_i32x4(load16(p)); }
    INLINE Float lanes(const float *p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
    INLINE Float same(float v) { return _mm512_set1_ps(v); }
    INLINE Int bytes(int v) { return _mm512_set1_epi8(char(v)); }
    INLINE Int none() { return _mm512_setzero_si512(); }
    INLINE Float zero() { return _mm512_setzero_ps(); }
    INLINE Int and_(Int a, Int b) { return _mm512_and_si512(a, b); }
    INLINE Int or_(Int a, Int b) { return _mm512_or_si512(a, b); }
    template <int n> INLINE Int right(Int v) { return _mm512_srli_epi16(v, n); }
    template <int n> INLINE Int left(Int v) { return _mm512_slli_epi16(v, n); }
    template <int n> INLINE Int left32(Int v) { return _mm512_slli_epi32(v, n); }
    INLINE Int shift_to_4(Int v, int bit) {
        return bit < 4 ? _mm512_slli_epi16(v, unsigned(4 - bit)) : _mm512_srli_epi16(v, unsigned(bit - 4));
    }
    INLINE Int shuffle(Int table, Int index) { return _mm512_shuffle_epi8(table, index); }
    INLINE Int negative8(Int v) { return _mm512_movm_epi8(_mm512_movepi8_mask(v)); }
    INLINE Int unpack_low(Int a, Int b) { return _mm512_unpacklo_epi8(a, b); }
    INLINE Int unpack_high(Int a, Int b) { return _mm512_unpackhi_epi8(a, b); }
    INLINE Int add8(Int a, Int b) { return _mm512_add_epi8(a, b); }
    INLINE Int add32(Int a, Int b) { return _mm512_add_epi32(a, b); }
    INLINE Int sub32(Int a, Int b) { return _mm512_sub_epi32(a, b); }
    INLINE Int madd16(Int a, Int b) { return _mm512_madd_epi16(a, b); }
    INLINE Wide wide(Int v) { return _mm512_xor_si512(v, bytes(128)); }
    INLINE Int dot(Int sum, Int w, Int a) { return _mm512_dpbusd_epi32(sum, w, a); }
    // A dot product of 32 (16) values fits 16 bits: the scale is in the lower word of each sum, 0 in the upper one.
    INLINE Int scaled_dot(Int sum, Int w0, Int w1, const int8_t *a, Int scale) {
        return _mm512_dpwssd_epi32(sum, dot(dot(none(), w0, broadcast(a)), w1, broadcast(a + 16)), scale);
    }
    INLINE Int scaled_dot(Int sum, Int w, const int8_t *a, Int scale) {
        return _mm512_dpwssd_epi32(sum, dot(none(), w, broadcast(a)), scale);
    }
    INLINE Int unsigned_scale(int s) { return _mm512_set1_epi32(int(0x80808000u | unsigned(s))); }
    INLINE Int signed_scale(int s) { return _mm512_set1_epi32(int(0x80800000u | unsigned(2 * s + 1) << 8 | unsigned(2 * s))); }
    INLINE Int upper_bytes_to_words() {
        return _mm512_set4_epi32(int(0x800f800eu), int(0x800d800cu), int(0x800b800au), int(0x80098008u));
    }
    INLINE Float to_float(Int v) { return _mm512_cvtepi32_ps(v); }
    INLINE Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    INLINE Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    INLINE Float negated_fma(Float a, Float b, Float c) { return _mm512_fnmadd_ps(a, b, c); }
    INLINE void store(Float v, float *out, int count) {
        v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xB1));
        v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4E));
        const Int first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
        const __m128 results = _mm512_castps512_ps128(_mm512_permutexvar_ps(first, v));
        _mm_mask_storeu_ps(out, count < rows ? __mmask8((1 << count) - 1) : __mmask8(15), results);
    }
};

}  // namespace

extern const kernels::Instructions kernels::AVX512 = table<Vector512>("AVX-512 VNNI");
