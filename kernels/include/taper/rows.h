// What is done to heads of queries and keys.
#pragma once
#include "common.h"

// Two elements that turn together (Su et al. 2021).
INLINE float2 turn(float x, float y, float cosine, float sine) {
    float2 out;
    out.x = x * cosine - y * sine, out.y = y * cosine + x * sine;
    return out;
}
