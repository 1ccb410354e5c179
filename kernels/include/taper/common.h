// What every kernel starts from.
#pragma once
#include <metal_stdlib>
using namespace metal;

// On the host nothing is gained by code that is many times longer, and compiling it takes minutes.
#ifdef MSL_HOST
#define INLINE inline
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
