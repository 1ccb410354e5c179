// taper/wide.h on an NVIDIA GPU: wgmma of sm_90a.
#pragma once
struct WideC { float at[32]; };
INLINE void wide_zero(thread WideC& c) {
    UNROLL for (int i = 0; i < 32; ++i) c.at[i] = 0.0f;
}
INLINE void wide_publish() { __asm__ volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INLINE void wide_begin() { __asm__ volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// The descriptor: where B begins, 1024 bytes from eight columns (or rows) to the next, 128 bytes of one swizzled.
template <int BY_ROWS> INLINE void wide_instruction(thread WideC& c, uint a0, uint a1, uint a2, uint a3, threadgroup const uint4* b) {
    const ulong descriptor = ((ulong)b >> 4 & 0x3fff) | 1ul << 16 | 64ul << 32 | 1ul << 62;
    __asm__ volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, %37;"
        : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3]), "+f"(c.at[4]), "+f"(c.at[5]), "+f"(c.at[6]), "+f"(c.at[7]), "+f"(c.at[8]), "+f"(c.at[9]), "+f"(c.at[10]), "+f"(c.at[11]), "+f"(c.at[12]), "+f"(c.at[13]), "+f"(c.at[14]), "+f"(c.at[15]), "+f"(c.at[16]), "+f"(c.at[17]), "+f"(c.at[18]), "+f"(c.at[19]), "+f"(c.at[20]), "+f"(c.at[21]), "+f"(c.at[22]), "+f"(c.at[23]), "+f"(c.at[24]), "+f"(c.at[25]), "+f"(c.at[26]), "+f"(c.at[27]), "+f"(c.at[28]), "+f"(c.at[29]), "+f"(c.at[30]), "+f"(c.at[31])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(descriptor), "n"(BY_ROWS));
}
INLINE void wide_multiply(thread WideC& c, uint, uint a0, uint a1, uint a2, uint a3, threadgroup const uint4* b, uint k) {
    wide_instruction<0>(c, a0, a1, a2, a3, b + 2 * k);
}
INLINE void wide_multiply_rows(thread WideC& c, uint, uint a0, uint a1, uint a2, uint a3, threadgroup const uint4* b, uint k) {
    wide_instruction<1>(c, a0, a1, a2, a3, b + 128 * k);
}
INLINE void wide_end() { __asm__ volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> INLINE void wide_wait() { __asm__ volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
INLINE void wide_to_lanes(thread WideC& c, int j, uint, thread float* out) {
    UNROLL for (int i = 0; i < 4; ++i) out[i] = c.at[4 * j + i];
}
INLINE void wide_scale(thread WideC& c, uint, float low, float high) {
    UNROLL for (int i = 0; i < 32; ++i) c.at[i] *= i % 4 < 2 ? low : high;
}
