// Where weights of 4 and 8 bits lie: in pieces of 16 bytes, row by row, or packed, so that what is read
// together lies together: two neighbouring pieces of each of eight rows, then the next two, and so on; then the
// next eight rows. Of these eight rows the scales and biases of a group lie together, then those of the next.
#pragma once
#include "common.h"

// Where a row of so many pieces begins, and where a piece stands from there.
INLINE size_t row_at(uint row, uint pieces, uint packed) {
    return packed ? size_t(row / 8) * (pieces * 8) + row % 8 * 2 : size_t(row) * pieces;
}
INLINE uint piece_in_row(uint piece, uint packed) { return packed ? piece / 2 * 16 + piece % 2 : piece; }
INLINE size_t piece_at(uint row, uint piece, uint pieces, uint packed) {
    return row_at(row, pieces, packed) + piece_in_row(piece, packed);
}

// The same of scales and biases: a word each for a group.
INLINE size_t scales_at(uint row, uint groups, uint packed) {
    return packed ? size_t(row / 8) * (groups * 8) + row % 8 : size_t(row) * groups;
}
INLINE uint scale_in_row(uint group, uint packed) { return packed ? group * 8 : group; }
