// Blocks built anew from rows that stay.
//
// A side's pages are blocks of heads of regions, which hold 32 rows each in one of the layouts below. Row i
// of the blocks' rows is that of slot slots[i] (block * 32 + offset); what is past the last row is zero.
//
// gather_rows: pages -> block j of the rows at into[j] of `out`, as they are encoded. Rows that are to stay
//   where others were are gathered into memory of their own first, and brought from there: by this kernel too.
//   Grid: x blocks, y heads, z over 256 pieces of two bytes of a region. Threads: 256.
// gather_exact: the same of exact pages, halves in the order of attend.metal: a row that has no exact slot
//   (NONE) is what its codes say. They are no trellis codes. Grid: likewise. Threads: 256.
// Reference: PagedCodec::compact.
#include "taper/common.h"
#include "taper/codes.h"

constant uint NONE = 0xffffffffu;
// What a region is, counted in two bytes.
enum {
    ROW_AFTER_ROW = 0,  // [token][width]
    TILED = 1,          // [part][token][width]
    RINGS = 2,          // codes [token / 4][rings][token % 4][width], a scale a token
    NIBBLE_KEYS = 3,    // the same with codes of 4 bits (codes.h): tokens t and t + 2 of four share bytes
    NIBBLE_VALUES = 4   // the same; each byte is one token's, and four tokens' bytes take turns
};

struct GatherParams {
    uint rows;
    uint heads;
    uint region;  // in two bytes
    uint layout;
    uint width;
    uint rings;
};

// Which row a piece of a region is of: past the last one, if of none.
INLINE uint row_of(GatherParams p, uint i) {
    if (p.layout == ROW_AFTER_ROW) return i / p.width;
    if (p.layout == TILED) return i / p.width % BLOCK;
    const uint codes = BLOCK * p.rings * p.width;
    return i < codes ? i / (4 * p.width) / p.rings * 4 + i / p.width % 4 : i - codes;
}

// Where the same piece of row `own` is.
INLINE uint place_of(GatherParams p, uint i, uint own) {
    if (p.layout == ROW_AFTER_ROW) return own * p.width + i % p.width;
    if (p.layout == TILED) return (i / (p.width * BLOCK) * BLOCK + own) * p.width + i % p.width;
    const uint codes = BLOCK * p.rings * p.width;
    if (i >= codes) return codes + own;
    return ((own / 4 * p.rings + i / (4 * p.width) % p.rings) * 4 + own % 4) * p.width + i % p.width;
}

// Rows of one head that are to stand in a block.
struct Source {
    device const ushort* pages;
    device const uint* slots;
    uint rows;
    uint head;
};

INLINE device const ushort* region_of(GatherParams p, Source from, uint slot) {
    return from.pages + (size_t(slot / BLOCK) * p.heads + from.head) * p.region;
}

// The codes of two elements of a key, in the low nibbles of two bytes.
INLINE uint key_nibbles(GatherParams p, Source from, uint token, uint ring, uint pair) {
    if (token >= from.rows) return 0;
    const uint slot = from.slots[token], own = slot % BLOCK;
    const uint both = region_of(p, from, slot)[(own / 4 * p.rings + ring) * 16 + own % 2 * 8 + pair];
    return both >> (own % 4 / 2 * 4) & 0x0f0fu;
}

// A byte of a value: the codes of elements e and e + 8 of a ring.
INLINE uint value_byte(GatherParams p, Source from, uint token, uint ring, uint e) {
    if (token >= from.rows) return 0;
    const uint slot = from.slots[token], own = slot % BLOCK;
    return ((device const uchar*)region_of(p, from, slot))[(own / 4 * p.rings + ring) * 32 + e * 4 + own % 4];
}

// Two bytes of nibbles, which are of two rows.
INLINE uint nibbles(GatherParams p, Source from, uint i) {
    const uint four = i / 16 / p.rings * 4, ring = i / 16 % p.rings, at = i % 16;
    if (p.layout == NIBBLE_KEYS) {
        const uint token = four + at / 8, pair = at % 8;
        return key_nibbles(p, from, token, ring, pair) | key_nibbles(p, from, token + 2, ring, pair) << 4;
    }
    const uint token = four + at % 2 * 2, e = at / 2;
    return value_byte(p, from, token, ring, e) | value_byte(p, from, token + 1, ring, e) << 8;
}

kernel void gather_rows(
    device const ushort* pages [[buffer(0)]],
    device const uint* slots [[buffer(1)]],
    device const uint* into [[buffer(2)]],
    device ushort* out [[buffer(3)]],
    constant GatherParams& p [[buffer(4)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    const uint i = at.z * 256 + tid;
    if (i >= p.region) return;
    const Source from = {pages, slots + at.x * BLOCK, min(p.rows - at.x * BLOCK, uint(BLOCK)), at.y};
    uint piece = 0;
    if (p.layout >= NIBBLE_KEYS && i < BLOCK * p.rings * p.width) {
        piece = nibbles(p, from, i);
    } else if (row_of(p, i) < from.rows) {
        const uint slot = from.slots[row_of(p, i)];
        piece = region_of(p, from, slot)[place_of(p, i, slot % BLOCK)];
    }
    out[(size_t(into[at.x]) * p.heads + at.y) * p.region + i] = ushort(piece);
}

struct GatherExactParams {
    uint rows;
    uint heads;
    uint head_dim;
    uint keys;    // whether these are keys
    uint format;  // of the codes
    uint region;  // their bytes
    uint group;
};

kernel void gather_exact(
    device const ushort* exact [[buffer(0)]],
    device const uchar* coded [[buffer(1)]],
    device const uint2* slots [[buffer(2)]],
    device const float* levels [[buffer(3)]],
    device ushort* out [[buffer(4)]],
    constant GatherExactParams& p [[buffer(5)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    const uint i = at.z * 256 + tid, d = p.head_dim, region = BLOCK * d;
    if (i >= region) return;
    const uint token = p.keys ? i / 8 % BLOCK : i / d, e = p.keys ? i / (8 * BLOCK) * 8 + i % 8 : i % d;
    uint bits = 0;
    if (at.x * BLOCK + token < p.rows) {
        const uint2 slot = slots[at.x * BLOCK + token];
        if (slot.y != NONE) {
            const uint own = slot.y % BLOCK;
            device const ushort* from = exact + (size_t(slot.y / BLOCK) * p.heads + at.y) * region;
            bits = from[p.keys ? (e / 8 * BLOCK + own) * 8 + e % 8 : own * d + e];
        } else {
            device const uchar* from = coded + (size_t(slot.x / BLOCK) * p.heads + at.y) * p.region;
            const Rows rows = {from, p.format, d, (d + RING - 1) / RING, p.group};
            const uint own = slot.x % BLOCK;
            const float x = element_of(rows, own, e, row_scale(rows, own), levels, p.keys != 0);
            bits = as_type<ushort>(half(clamped(x)));
        }
    }
    out[(size_t(at.x) * p.heads + at.y) * region + i] = ushort(bits);
}
