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
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
