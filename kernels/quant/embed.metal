// Rows of a weight matrix as floats: the embedding table's rows of some tokens.
//
// embed_*: out[t][i] = w[ids[t]][i], f32. Reference: Embedding::forward.
// widen_*: out[r][i] = w[first + r][i], f16: what a dense matrix product reads (ids is unused).
//
// Grid: x over blocks of 128 chunks of a row, y over rows. Threads: 128. One thread a chunk.
#include "taper/common.h"
#include "taper/weights.h"

struct EmbedParams {
    uint cols;
    uint group_shift;
    uint scale_type;
    uint packed;
    uint first;
};

inline void store8(device float* out, thread const float* v) {
    UNROLL for (int i = 0; i < 8; i += 4) {
        float4 four;
        four.x = v[i], four.y = v[i + 1], four.z = v[i + 2], four.w = v[i + 3];
        *(device float4*)(out + i) = four;
    }
}
inline void store8(device half* out, thread const float* v) {
    uint pairs[4];
    UNROLL for (int i = 0; i < 4; ++i) {
        pairs[i] = uint(as_type<ushort>(half(v[2 * i]))) | uint(as_type<ushort>(half(v[2 * i + 1]))) << 16;
    }
    uint4 all;
    all.x = pairs[0], all.y = pairs[1], all.z = pairs[2], all.w = pairs[3];
    *(device uint4*)out = all;
}

template <typename W, typename T>
void read_chunk(thread const WeightRows& w, device T* out, uint row, uint to, uint chunk) {
    if (chunk >= w.chunks) return;
    uint raw[W::RAW];
    float s, b;
    W::load(raw, w, row, chunk);
    W::affine(w, row, chunk, s, b);
    device T* o = out + (size_t(to) * w.chunks + chunk) * CHUNK;
    UNROLL for (int i = 0; i < CHUNK; i += 8) {
        float v[8];
        UNROLL for (int e = 0; e < 8; ++e) v[e] = W::exact(W::quant(raw, i + e), s, b);
        store8(o + i, v);
    }
}

#define EMBED(FORMAT, NAME) \
kernel void embed_##NAME( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const uint* ids [[buffer(2)]], \
    device float* out [[buffer(3)]], \
    constant EmbedParams& p [[buffer(4)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]]) \
{ \
    const WeightRows w = {data, scales, p.cols / CHUNK, p.group_shift, p.scale_type, p.packed}; \
    read_chunk<FORMAT, float>(w, out, ids[at.y], at.y, at.x * 128u + tid); \
}
FOR_EACH_FORMAT(EMBED)

// Only backends with a library for dense products ask for it, and Metal's has none.
#ifndef __METAL_VERSION__
#define WIDEN(FORMAT, NAME) \
kernel void widen_##NAME( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device half* out [[buffer(2)]], \
    constant EmbedParams& p [[buffer(3)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]]) \
{ \
    const WeightRows w = {data, scales, p.cols / CHUNK, p.group_shift, p.scale_type, p.packed}; \
    read_chunk<FORMAT, half>(w, out, p.first + at.y, at.y, at.x * 128u + tid); \
}
FOR_EACH_FORMAT(WIDEN)
#endif
