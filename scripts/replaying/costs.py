"""What passes cost: tables that policies are replayed under."""

from __future__ import annotations

from spec_local.bench.traces import Costs


def _ms(**by_rows: float) -> dict[int, float]:
    return {int(rows.removeprefix("r")): ms / 1e3 for rows, ms in by_rows.items()}


_T_Q8 = _ms(r1=135, r2=133, r3=159, r4=174, r5=262, r8=265, r16=417)
_T_Q4K = _ms(r1=72, r2=109, r3=134, r4=124, r5=159, r8=223, r16=273)
_D_Q4K = _ms(r1=51, r2=56, r3=67, r4=73, r5=104, r8=123, r16=202)
_D_Q40 = _ms(r1=38, r2=52, r3=65, r4=46, r5=67, r8=86, r16=144)
_T_Q8_AVX2 = _ms(r1=146, r2=200, r3=380, r4=280, r5=460, r6=370, r7=540, r8=460, r12=630, r16=810)
_D_Q40_AVX2 = _ms(r1=36, r2=45, r3=64, r4=68, r8=97, r16=150, r64=514)
_T_Q4K_AVX2 = _ms(r1=83, r2=130, r3=172, r4=177, r5=228, r6=279, r7=325, r8=410, r12=590, r16=620)
_D_Q4K_AVX2 = _ms(r1=38, r2=74, r3=98, r4=102, r8=172, r16=265)
_T_7B = _ms(r1=106, r2=173, r3=243, r4=169, r5=251, r6=321, r7=395, r8=306, r12=455, r16=459)
_D_7B = _ms(r1=8.7, r2=13.9, r3=19.5, r4=14.0, r8=24.7, r16=34.4, r64=108)
_T_DEFAULT = _ms(r1=26.3, r2=47.1, r3=61.0, r4=72.2, r5=87.8, r6=103, r7=119, r8=121, r12=174, r16=158)
_D_DEFAULT = _ms(r1=14.9, r2=37.4, r3=45.6, r4=48.7, r8=65.3, r16=74.4, r64=219)


def _line(first: float, slope: float) -> dict[int, float]:
    return {n: first * (1 + slope * (n - 1)) for n in (1, 64)}


COSTS = {
    "A": Costs("1.5B Q8_0 + 0.5B Q4_0, 2 cores", _T_Q8, _D_Q40),
    "B": Costs("1.5B Q4_K_M + 0.5B Q4_K_M, 2 cores", _T_Q4K, _D_Q4K),
    "C": Costs("1.5B Q4_K_M + 0.5B Q4_0, 2 cores", _T_Q4K, _D_Q40),
    "A-AVX2": Costs("1.5B Q8_0 + 0.5B Q4_0, 2 older cores", _T_Q8_AVX2, _D_Q40_AVX2),
    "B-AVX2": Costs("1.5B Q4_K_M + 0.5B Q4_K_M, 2 older cores", _T_Q4K_AVX2, _D_Q4K_AVX2),
    "7B": Costs("like a 7B, Q4_0, + 0.5B Q4_0, 2 cores", _T_7B, _D_7B),
    "default": Costs("1.5B Q4_K_M + 0.5B Q4_K_M, 2 cores, later", _T_DEFAULT, _D_DEFAULT),
    "flat": Costs("flat, like a GPU", _line(0.02, 0.03), _line(0.0016, 0.03)),
    "linear": Costs("linear, each row 0.85 of the first", _line(0.1, 0.85), _line(0.029, 0.85)),
}
"""Cost tables measured on 2-core machines, one with AVX-512 (A, B, C; 256 tokens cached) and one with AVX2 only, whose
last tile of rows is dear unless it is full; a 1.5B with inert layers behind it that costs like a 7B, and the default
pair, on newer cores, where four rows cost less than three and 16 less than 12; and two made ones."""
