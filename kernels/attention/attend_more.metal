// Attention over caches of plain floats whose heads are larger, or whose values are the ends of their keys. These kernels
// have a file of their own, as GPUs compile a file when it is first used, and few models use them.
//
// attend_*_d512, attend_*_wide: as in attend.metal, with head_dim up to 512. The kernels that add the spans are there.
// kv_write_keys_*: kv_write_* of keys alone.
// attend_latent_*: of latents, of which the cache has keys alone, with head_dim up to 576: the last value_dim elements of
//   a key, up to 512, are its value. A lane takes eight elements at a time. out [t, q_heads, value_dim].
// Reference: as there.
#include "taper/attend.h"

#define KV_WRITE_KEYS(NAME, KV) \
kernel void kv_write_keys_##NAME( \
    device const float* k [[buffer(0)]], \
    device const uint* slots [[buffer(1)]], \
    device KV* k_pages [[buffer(2)]], \
    constant WriteParams& p [[buffer(3)]], \
    uint i [[thread_position_in_grid]]) \
{ \
    if (i < p.n) { \
        const uint d = i % p.head_dim, head = i / p.head_dim % p.kv_heads; \
        const uint slot = slots[i / p.head_dim / p.kv_heads]; \
        const size_t base = (size_t(slot / BLOCK) * p.kv_heads + head) * BLOCK * p.head_dim; \
        store_kv(k_pages, base + (d / 8 * BLOCK + slot % BLOCK) * 8 + d % 8, k[i]); \
    } \
}
KV_WRITE_KEYS(f16, half)
KV_WRITE_KEYS(bf16, bf16)
KV_WRITE_KEYS(f32, float)

ATTEND(f16_d512, half, 512, MAX_WIDE, MAX_WIDE, 4, false)
#define ATTEND_MORE(NAME, KV) \
    ATTEND(NAME##_wide, KV, 0, MAX_WIDE, MAX_WIDE, 4, false) \
    ATTEND(latent_##NAME, KV, 0, MAX_LATENT_KEY, MAX_WIDE, 4, true)
ATTEND_MORE(f16, half)
ATTEND_MORE(bf16, bf16)
ATTEND_MORE(f32, float)
