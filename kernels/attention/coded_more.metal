// Attention over caches whose keys have a sketch, or whose codes are of a wide trellis.
//
// attend_coded_*: as in coded.metal, whose coded_merge comes next. These kernels have a file of their own, as
//   GPUs compile a file when it is first used, and few caches use them.
// Reference: as there.
#include "taper/coded_attend.h"

ATTEND(8, WIDE + 3, WIDE + 3, 8_of_33_33)
ATTEND(16, WIDE + 3, WIDE + 3, 16_of_33_33)
// For keys with a sketch.
ATTEND(8, SKETCHED, ANY, sketched_8)
ATTEND(16, SKETCHED, ANY, sketched_16)
ATTEND(8, SKETCHED + 3, SCALAR + 3, sketched_8_of_43_13)
ATTEND(8, SKETCHED + 4, NIBBLES, sketched_8_of_44_14)

