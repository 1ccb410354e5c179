// What every kernel starts from.
#pragma once
#include <metal_stdlib>
using namespace metal;

// On the host nothing is gained by code that is many times longer, and compiling it takes minutes.
#ifdef MSL_HOST
#define INLINE inline
// Each file has its own copy of what it includes: the linker would keep one of all, and a bug planted in another would
// go unseen.
#define inline static inline
#define UNROLL
#define UNROLL_BY(N)
#else
// For functions that take arrays of registers: a call would put these into memory.
#define INLINE inline __attribute__((always_inline))
// Before loops whose arrays must live in registers.
#define UNROLL _Pragma("clang loop unroll(full)")
// Before loops with independent loads.
#define TAPER_PRAGMA(TEXT) _Pragma(#TEXT)
#define UNROLL_BY(N) TAPER_PRAGMA(clang loop unroll_count(N))
#endif

// Apple's compiler fuses products and sums whatever its options say, and results would depend on which it
// fuses; where a fused one is meant, the kernels say `fma`.
#ifdef __METAL_VERSION__
#pragma METAL fp contract(off)
#pragma clang fp contract(off)
#endif

// What a half holds of a number: one that is too large becomes the largest half, and NaN stays NaN.
INLINE float clamped(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

// On NVIDIA GPUs the launches of a step overlap: the threadgroups of one start while the last ones of
// the one before it are still running, and wait, so that little time passes between the two. A kernel
// waits first of all; one that begins with EARLY_LAUNCH waits where it calls `previous_launch_done`, and
// reads nothing before that but weights, which no kernel changes, and what the host put there, and writes nothing.
#ifndef EARLY_LAUNCH
#define EARLY_LAUNCH
INLINE void previous_launch_done() {}
#endif
