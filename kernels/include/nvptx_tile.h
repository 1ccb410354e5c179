// taper/tile.h on an NVIDIA GPU: mma.sync m16n8k16. A lane has two neighbours of a row; with g = lane
// / 4 and t = lane % 4, of A rows g and g + 8 and columns 2t and 2t + 8, of B columns g and rows 2t and
// 2t + 8, of C rows g and g + 8 and columns 2t.
#pragma once
struct TileA { uint part[4]; };
struct TileB { uint part[2]; };
struct TileC { float part[4]; };

INLINE uint tile_lane() { return __nvvm_read_ptx_sreg_tid_x() & 31u; }

INLINE void tile_load(thread TileA& a, threadgroup const half* p, uint stride) {
    const uint g = tile_lane() / 4, t = tile_lane() % 4;
    threadgroup const half* at = p + g * stride + 2 * t;
    a.part[0] = *(threadgroup const uint*)at;
    a.part[1] = *(threadgroup const uint*)(at + 8 * stride);
    a.part[2] = *(threadgroup const uint*)(at + 8);
    a.part[3] = *(threadgroup const uint*)(at + 8 * stride + 8);
}

INLINE void tile_load(thread TileB& b, threadgroup const half* p, uint stride) {
    const uint g = tile_lane() / 4, t = tile_lane() % 4;
    threadgroup const half* at = p + g * stride + 2 * t;
    b.part[0] = *(threadgroup const uint*)at;
    b.part[1] = *(threadgroup const uint*)(at + 8);
}

INLINE void tile_zero(thread TileC& c) {
    c.part[0] = c.part[1] = c.part[2] = c.part[3] = 0.0f;
}

INLINE void tile_multiply(thread TileC& c, thread const TileA& a, thread const TileB& b) {
    __asm__("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c.part[0]), "+f"(c.part[1]), "+f"(c.part[2]), "+f"(c.part[3])
            : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(b.part[0]), "r"(b.part[1]));
}

INLINE void tile_store(thread const TileC& c, device float* p, uint stride) {
    const uint g = tile_lane() / 4, t = tile_lane() % 4;
    device float* at = p + g * stride + 2 * t;
    *(device float2*)at = (float2){c.part[0], c.part[1]};
    *(device float2*)(at + 8 * stride) = (float2){c.part[2], c.part[3]};
}

INLINE void tile_of_lanes(thread TileA& a, uint, uint a0, uint a1, uint a2, uint a3) {
    a.part[0] = a0, a.part[1] = a1, a.part[2] = a2, a.part[3] = a3;
}
INLINE void tile_of_lanes(thread TileB& b, uint, uint b0, uint b1) { b.part[0] = b0, b.part[1] = b1; }
INLINE void tile_to_lanes(thread TileC& c, uint, thread float* out) {
    for (int i = 0; i < 4; ++i) out[i] = c.part[i];
}
