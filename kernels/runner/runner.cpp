// Runs rewritten kernels on the host: one fiber a GPU thread, one threadgroup at a time.
//
// A fiber gives up the processor only at a barrier or a simdgroup operation. With a seed the next
// fiber is chosen at random, and so is the order of threadgroups: code that relies on an order it
// did not ask for with a barrier gives other results. Divergence is an error: a barrier that some
// threads of a threadgroup do not reach, or a simdgroup operation that some lanes do not. Compiled
// with AddressSanitizer, buffers from `taper_alloc` are checked to the byte.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#endif
#endif
#ifndef UNPOISON
#define UNPOISON(p, n)
#endif

extern "C" void taper_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl taper_switch
.type taper_switch, @function
taper_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size taper_switch, .-taper_switch
)");
#else
#error "the runner's context switch is written for x86-64"
#endif

namespace {
constexpr size_t kStack = 1 << 16;
constexpr unsigned kMaxThreads = 1024, kLanes = 32, kArgs = 16;
enum class State : uint8_t { Ready, Barrier, Simd, Done };

struct Fiber {
    void* sp;
    State state;
    const void* site;  // where it waits
};
struct Slot { alignas(16) unsigned char bytes[16]; };

char* stacks;
Fiber fibers[kMaxThreads];
// Two sets, so that a lane may give its next value while another still reads the last.
Slot slots[kMaxThreads / kLanes][2][kLanes];
uint8_t parity[kMaxThreads];
unsigned threads, current, group[3];
void* scheduler;
std::vector<unsigned> ready;
std::vector<void*> poisoned;
uint64_t random_state;
void* args[kArgs];
void (*kernel)(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*);

uint64_t next_random() {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return random_state;
}

void wait(State state, const void* site) {
    Fiber& me = fibers[current];
    me.state = state, me.site = site;
    taper_switch(&me.sp, scheduler);
}

void entry() {
    kernel(args[0], args[1], args[2], args[3], args[4], args[5], args[6], args[7], args[8], args[9], args[10], args[11], args[12], args[13], args[14], args[15]);
    wait(State::Done, nullptr);
    abort();  // a finished fiber is never resumed
}

void start(unsigned i) {
    char* top = stacks + (i + 1) * kStack;
    UNPOISON(top - kStack, kStack);
    // Six saved registers and the address to return to; at entry the stack is 8 below a multiple of 16.
    void** sp = (void**)top - 1;
    *--sp = (void*)entry;
    for (int r = 0; r < 6; ++r) *--sp = nullptr;
    fibers[i] = {sp, State::Ready, nullptr};
    parity[i] = 0;
}

void release(unsigned from, unsigned to) {
    for (unsigned i = from; i < to; ++i) fibers[i].state = State::Ready, ready.push_back(i);
}

// A simdgroup whose lanes all wait at one operation goes on.
void try_simd(unsigned i) {
    unsigned from = i / kLanes * kLanes;
    for (unsigned l = from; l < from + kLanes; ++l)
        if (fibers[l].state != State::Simd || fibers[l].site != fibers[i].site) return;
    release(from, from + kLanes);
}

const char* run_group() {
    ready.clear(), poisoned.clear();
    for (unsigned i = 0; i < threads; ++i) start(i), ready.push_back(i);
    // In a random order, every other threadgroup has a simdgroup that runs ahead of all others, whenever it
    // can: what it overwrites too early is not read yet.
    unsigned ahead = random_state ? next_random() % (2 * threads / kLanes) : threads;
    for (;;) {
        while (!ready.empty()) {
            size_t at = random_state ? next_random() % ready.size() : ready.size() - 1;
            for (size_t i = ahead * kLanes < threads ? ready.size() : 0; i-- > 0;)
                if (ready[i] / kLanes == ahead) { at = i; break; }
            current = ready[at];
            ready[at] = ready.back(), ready.pop_back();
            taper_switch(&scheduler, fibers[current].sp);
            if (fibers[current].state == State::Simd) try_simd(current);
        }
        unsigned done = 0, barrier = 0;
        for (unsigned i = 0; i < threads; ++i) {
            done += fibers[i].state == State::Done;
            barrier += fibers[i].state == State::Barrier && fibers[i].site == fibers[0].site;
        }
        if (done == threads) return nullptr;
        if (barrier == threads) { release(0, threads); continue; }
        for (unsigned i = 0; i < threads; ++i)
            if (fibers[i].state == State::Simd) return "a simdgroup operation that not all lanes reach";
        return "a barrier that not all threads reach";
    }
}
}  // namespace

extern "C" {
unsigned msl_group(unsigned d) { return group[d]; }
unsigned msl_thread() { return current; }
unsigned msl_threads() { return threads; }
void msl_barrier() { wait(State::Barrier, __builtin_return_address(0)); }

const void* msl_exchange(const void* mine, unsigned bytes) {
    unsigned me = current;
    Slot* set = slots[me / kLanes][parity[me] ^= 1];
    memcpy(set[me % kLanes].bytes, mine, bytes);
    wait(State::Simd, __builtin_return_address(0));
    return set;
}

void msl_poison(void* memory, unsigned bytes) {
    for (void* seen : poisoned) if (seen == memory) return;
    poisoned.push_back(memory);
    memset(memory, 0xff, bytes);  // NaN as a float
}

void* taper_alloc(size_t bytes) {
    void* p = malloc(bytes ? bytes : 1);
    if (p) memset(p, 0xff, bytes);
    return p;
}
void taper_free(void* p) { free(p); }

// Runs `fn` over a grid. Returns null, or what was wrong and where.
const char* taper_launch(void* fn, void* const* buffers, unsigned count, const unsigned* grid, unsigned group_threads, uint64_t seed) {
    static char message[256];
    if (count > kArgs) return "too many buffers";
    if (!group_threads || group_threads > kMaxThreads || group_threads % kLanes) return "threads a threadgroup must be a multiple of 32 up to 1024";
    if (!stacks) stacks = (char*)aligned_alloc(64, kStack * kMaxThreads);
    kernel = (decltype(kernel))fn;
    memset(args, 0, sizeof args);
    memcpy(args, buffers, count * sizeof(void*));
    threads = group_threads, random_state = seed;
    uint64_t groups = uint64_t(grid[0]) * grid[1] * grid[2];
    // A step that visits every threadgroup: coprime to their number because it is a prime above it.
    uint64_t stride = seed ? 4294967311ull : 1, at = groups ? seed % groups : 0;
    for (uint64_t i = 0; i < groups; ++i, at = (at + stride % groups) % groups) {
        group[0] = at % grid[0], group[1] = at / grid[0] % grid[1], group[2] = at / grid[0] / grid[1];
        if (const char* wrong = run_group()) {
            snprintf(message, sizeof message, "%s, in threadgroup (%u, %u, %u)", wrong, group[0], group[1], group[2]);
            return message;
        }
    }
    return nullptr;
}
}
