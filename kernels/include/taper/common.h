// What every kernel starts from.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Before loops whose arrays must live in registers.
#define UNROLL _Pragma("clang loop unroll(full)")
