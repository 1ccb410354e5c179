// Copies from device to threadgroup memory that go on while a thread computes. On NVIDIA GPUs they are
// asynchronous; elsewhere each is done at once.
//
// Copies form groups: copies_end ends one, and copies_wait<N> waits for all but the newest N. What other
// threads copied is there after a barrier that follows. prefetch_line asks for 128 bytes that will be read soon,
// or does nothing; it may stand before `previous_launch_done`, since nobody sees what it read.
#pragma once
#include "common.h"

#ifdef __NVPTX__
#include <nvptx_copies.h>
#else
INLINE void copy_4(threadgroup uint* to, device const uint* from) { *to = *from; }
INLINE void copy_16(threadgroup uint4* to, device const uint4* from) { *to = *from; }
INLINE void copies_end() {}
template <int N> INLINE void copies_wait() {}
template <typename T> INLINE void prefetch_line(device const T*) {}
#endif
