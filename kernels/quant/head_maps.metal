// Products with a matrix for each head.
//
// head_maps_*: out[t][h] = [the rest of x[t][h], W_h times its first `inputs` elements]: what takes queries of
//   multi-head latent attention to latents, beside what is rotated of them, and results back. x [tokens, heads, stride]
//   f32, out [tokens, heads, stride - inputs + rows]; the matrices are one below the other.
//   `lanes` of a simdgroup share a row, so that rows of few chunks leave none idle. A row's order of additions depends
//   on nothing but its length. Grid: x blocks of 4 * ROWS * 32 / lanes rows, y heads, z blocks of M tokens. Threads: 128.
// Reference: HeadMaps::forward.
#include "taper/common.h"
#include "taper/weights.h"

struct HeadMapsParams {
    uint tokens;
    uint heads;
    uint rows;      // of a head
    uint cols;      // as stored
    uint inputs;    // a multiple of 4, at most cols
    uint stride;    // elements of a head of x, a multiple of 4
    uint lanes;     // a power of two, at most 32
    uint group_shift;
    uint scale_type;
    uint packed;
};

template <typename W, int ROWS, int M>
INLINE void head_rows(
    device const uint* data, device const uint* scales, device const float* x, device float* out, HeadMapsParams p,
    uint3 at, uint tid, uint sg, uint lane)
{
    const uint chunks = p.cols / CHUNK, together = 32 / p.lanes, own = lane % p.lanes;
    const WeightRows w = {data, scales, chunks, p.group_shift, p.scale_type, p.packed};
    const uint first = (at.x * 4 + sg) * ROWS * together + lane / p.lanes, token = at.z * M;
    const uint rest = p.stride - p.inputs, width = rest + p.rows;
    if (at.x == 0) {
        for (uint i = tid; i < M * rest; i += 128) {
            const uint t = token + i / rest, e = i % rest;
            if (t >= p.tokens) continue;
            const size_t head = size_t(t) * p.heads + at.y;
            out[head * width + e] = x[head * p.stride + p.inputs + e];
        }
    }
    device const float* from[M];
    UNROLL for (int m = 0; m < M; ++m) {
        from[m] = x + (size_t(min(token + uint(m), p.tokens - 1)) * p.heads + at.y) * p.stride;
    }
    uint row[ROWS];
    float acc[ROWS][M];
    UNROLL for (int r = 0; r < ROWS; ++r) {
        row[r] = at.y * p.rows + min(first + uint(r) * together, p.rows - 1);
        UNROLL for (int m = 0; m < M; ++m) acc[r][m] = 0.0f;
    }
    for (uint chunk = own; chunk < chunks; chunk += p.lanes) {
        uint raw[ROWS][W::RAW];
        float s[ROWS], b[ROWS], dot[ROWS][M], sum[M];
        UNROLL for (int r = 0; r < ROWS; ++r) W::load(raw[r], w, row[r], chunk);
        UNROLL for (int r = 0; r < ROWS; ++r) W::affine(w, row[r], chunk, s[r], b[r]);
        UNROLL for (int m = 0; m < M; ++m) {
            sum[m] = 0.0f;
            UNROLL for (int r = 0; r < ROWS; ++r) dot[r][m] = 0.0f;
        }
        UNROLL for (int i = 0; i < CHUNK; i += 4) {
            const bool there = chunk * CHUNK + i < p.inputs;
            UNROLL for (int m = 0; m < M; ++m) {
                float4 v;
                v.x = 0.0f, v.y = 0.0f, v.z = 0.0f, v.w = 0.0f;
                if (there) v = *(device const float4*)(from[m] + chunk * CHUNK + i);
                sum[m] += v.x, sum[m] += v.y, sum[m] += v.z, sum[m] += v.w;
                UNROLL for (int r = 0; r < ROWS; ++r) {
                    dot[r][m] = fma(v.x, W::quant(raw[r], i), dot[r][m]);
                    dot[r][m] = fma(v.y, W::quant(raw[r], i + 1), dot[r][m]);
                    dot[r][m] = fma(v.z, W::quant(raw[r], i + 2), dot[r][m]);
                    dot[r][m] = fma(v.w, W::quant(raw[r], i + 3), dot[r][m]);
                }
            }
        }
        UNROLL for (int r = 0; r < ROWS; ++r) {
            UNROLL for (int m = 0; m < M; ++m) acc[r][m] += fma(s[r], dot[r][m], b[r] * sum[m]);
        }
    }
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const uint n = first + uint(r) * together;
        UNROLL for (int m = 0; m < M; ++m) {
            float all = acc[r][m];
            for (uint j = p.lanes / 2; j > 0; j /= 2) all += simd_shuffle_xor(all, ushort(j));
            if (own == 0 && n < p.rows && token + uint(m) < p.tokens) {
                out[(size_t(token + uint(m)) * p.heads + at.y) * width + rest + n] = all;
            }
        }
    }
}

#define HEAD_MAPS(FORMAT, NAME, ROWS, M) \
kernel void head_maps_##NAME##_m##M( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const float* x [[buffer(2)]], \
    device float* out [[buffer(3)]], \
    constant HeadMapsParams& p [[buffer(4)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    head_rows<FORMAT, ROWS, M>(data, scales, x, out, p, at, tid, sg, lane); \
}
#define HEAD_MAPS_OF(FORMAT, NAME) HEAD_MAPS(FORMAT, NAME, 2, 1) HEAD_MAPS(FORMAT, NAME, 2, 4)
FOR_EACH_FORMAT(HEAD_MAPS_OF)
