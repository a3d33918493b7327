// Which SIMD targets the kernels are compiled for. Include before any Highway header, in every kernel source
// and in tests that list targets.
#pragma once

// Ice Lake and later: VNNI and VBMI, which the kernels over codes are built around.
#define HWY_WANT_AVX3_DL
// The fallback must hold 128-bit blocks (a block is one lane group of a unit), which HWY_SCALAR cannot.
// Highway gives up EMU128 under g++ < 12.3 because of a miscompiled MulHigh (GCC bug 106322); no kernel here
// uses it, and tests run EMU128 against the reference.
#define HWY_BROKEN_EMU128 0
// The kernels keep vectors in arrays, so lengths must be known at compile time.
#define BGTQ_SCALABLE_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
// Every target costs build time. x86 without AVX2 is older than 2013 and gets the portable code; instrumented
// builds keep the newest, the commonest and the portable one.
#ifdef BGTQ_SANITIZED
#define HWY_DISABLED_TARGETS (BGTQ_SCALABLE_TARGETS | HWY_SSSE3 | HWY_SSE4 | HWY_AVX3)
#else
#define HWY_DISABLED_TARGETS (BGTQ_SCALABLE_TARGETS | HWY_SSSE3 | HWY_SSE4)
#endif
