// The data paths of a GPU, each as one kernel: every block computes the same words, so that all SMs must agree.
//
// sdc_paths.py has the same definitions for the CPU. STEPS comes from there. No header is included: NVRTC has none.

typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define MOST_SMS 1024
#define MOST_RECORDS 256
#define GROUP 8      // Products that one accumulator holds.
#define RANDOM_SET 4 // From this set on values are of all bits; those below are whole numbers.

struct Report {
    u32 blocks[MOST_SMS];   // Blocks that ran on each SM.
    u32 last[MOST_SMS];     // The launch that it met last, from 1.
    u32 launches[MOST_SMS]; // Launches that it met.
    u32 wrong[MOST_SMS];    // Words that differ.
    u32 records;            // Differences, of which the first are kept:
    u32 record[MOST_RECORDS][8];
};

__device__ __forceinline__ u32 sm() {
    u32 id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id % MOST_SMS;
}

__device__ __forceinline__ u32 seed(u32 set, u32 place) {
    u32 s = (set * 0x9E3779B1u) ^ (place * 0x85EBCA77u + 0xC2B2AE3Du);
    s ^= s >> 15;
    s *= 0x2C1B3C6Du;
    return s ^ (s >> 12);
}

__device__ __forceinline__ u32 draw(u32 &s) {
    s = s * 1664525u + 1013904223u;
    return s ^ (s >> 16);
}

// A bijection of each argument: one wrong word always changes the digest.
__device__ __forceinline__ u32 fold(u32 h, u32 word) {
    h = (h ^ word) * 0x9E3779B1u;
    return h ^ (h >> 15);
}

__device__ void count_block(Report *report, u32 launch) {
    if (threadIdx.x == 0) {
        u32 id = sm();
        atomicAdd(&report->blocks[id], 1u);
        if (atomicExch(&report->last[id], launch + 1) != launch + 1) atomicAdd(&report->launches[id], 1u);
    }
}

__device__ void keep(Report *report, u32 launch, u32 where, u32 which, u64 got, u64 want) {
    u32 id = sm();
    atomicAdd(&report->wrong[id], 1u);
    u32 at = atomicAdd(&report->records, 1u);
    if (at < MOST_RECORDS) {
        u32 *record = report->record[at];
        record[0] = launch, record[1] = id, record[2] = where, record[3] = which;
        record[4] = (u32)got, record[5] = (u32)(got >> 32), record[6] = (u32)want, record[7] = (u32)(want >> 32);
    }
}

// With `answers` the words are handed over, else they are compared with those expected.
__device__ void settle(u32 h, u32 set, u32 launch, const u32 *expected, u32 *answers, Report *report) {
    count_block(report, launch);
    if (answers) {
        answers[blockIdx.x * (THREADS + 1) + threadIdx.x] = h;
        if (threadIdx.x == 0) answers[blockIdx.x * (THREADS + 1) + THREADS] = sm();
    } else if (h != expected[set * THREADS + threadIdx.x]) {
        keep(report, launch, threadIdx.x, set, h, expected[set * THREADS + threadIdx.x]);
    }
}

__device__ __forceinline__ float unit(u32 bits) { return __uint_as_float((bits & 0x807FFFFFu) | 0x3F800000u); }

__device__ __forceinline__ u64 bits64(u32 high, u32 low) { return ((u64)high << 32) | low; }

__device__ __forceinline__ double unit64(u64 bits) {
    return __longlong_as_double((bits & 0x800FFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
}

__device__ u32 of_fp32(u32 set, void *) {
    u32 s = seed(set, threadIdx.x), h = 0;
    float x = 1.5f, y = 1.25f;
    for (int step = 0; step < STEPS; step++) {
        float a = unit(draw(s));
        u32 r = draw(s);
        float b = __uint_as_float((r & 0x87FFFFFFu) + (120u << 23));
        x = __fmaf_rn(a, unit(__float_as_uint(x)), b);
        y = __fmaf_rn(unit(__float_as_uint(x)), unit(__float_as_uint(y)), a);
        h = fold(fold(h, __float_as_uint(x)), __float_as_uint(y));
    }
    return h;
}

__device__ u32 of_fp64(u32 set, void *) {
    u32 s = seed(set, threadIdx.x), h = 0;
    double x = 1.5, y = 1.25;
    for (int step = 0; step < STEPS; step++) {
        u32 r = draw(s), q = draw(s), t = draw(s);
        double a = unit64(bits64(r, q));
        double b = __longlong_as_double(bits64((t & 0x80FFFFFFu) + (1016u << 20), r ^ q));
        x = __fma_rn(a, unit64(__double_as_longlong(x)), b);
        y = __fma_rn(unit64(__double_as_longlong(x)), unit64(__double_as_longlong(y)), a);
        u64 one = __double_as_longlong(x), other = __double_as_longlong(y);
        h = fold(fold(h, (u32)one), (u32)(one >> 32));
        h = fold(fold(h, (u32)other), (u32)(other >> 32));
    }
    return h;
}

#define APPROXIMATE(name, out, in) asm volatile(name ".approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(in))

__device__ u32 of_special(u32 set, void *) {
    u32 s = seed(set, threadIdx.x), h = 0;
    for (int step = 0; step < STEPS; step++) {
        u32 r = draw(s);
        float x = __uint_as_float((r & 0x07FFFFFFu) + (120u << 23)), y = unit(draw(s)), out[7];
        APPROXIMATE("sin", out[0], y);
        APPROXIMATE("cos", out[1], y);
        APPROXIMATE("ex2", out[2], y);
        APPROXIMATE("lg2", out[3], x);
        APPROXIMATE("rsqrt", out[4], x);
        APPROXIMATE("rcp", out[5], x);
        APPROXIMATE("sqrt", out[6], x);
        for (int at = 0; at < 7; at++) h = fold(h, __float_as_uint(out[at]));
    }
    return h;
}

#define SLOTS 64

struct Slots {
    u32 sum[SLOTS], most[SLOTS];
    float real[SLOTS];
    u64 wide[SLOTS];
};

__device__ void clear(Slots *slots) {
    if (threadIdx.x < SLOTS) {
        slots->sum[threadIdx.x] = slots->most[threadIdx.x] = 0;
        slots->real[threadIdx.x] = 0.0f;
        slots->wide[threadIdx.x] = 0;
    }
    __threadfence();
}

__device__ __forceinline__ void add(Slots *slots, u32 slot, u32 r) {
    atomicAdd(&slots->sum[slot], r);
    atomicMax(&slots->most[slot], r);
    atomicAdd(&slots->real[slot], (float)((int)(r & 0xFFFu) - 2048));
    atomicAdd(&slots->wide[slot], bits64(r, r * 0x9E3779B1u));
}

// By atomics again: a load could come from the SM's own cache.
__device__ u32 read(u32 h, Slots *slots, u32 slot) {
    h = fold(h, atomicAdd(&slots->sum[slot], 0u));
    h = fold(h, atomicMax(&slots->most[slot], 0u));
    h = fold(h, __float_as_uint(atomicAdd(&slots->real[slot], 0.0f)));
    u64 wide = atomicAdd(&slots->wide[slot], 0ull);
    return fold(fold(h, (u32)wide), (u32)(wide >> 32));
}

__device__ u32 of_atomics(u32 set, void *scratch) {
    __shared__ Slots near;
    Slots *far = (Slots *)scratch;
    u32 s = seed(set, threadIdx.x), h = 0;
    for (int group = 0; group < STEPS / 32; group++) {
        clear(&near);
        clear(far);
        __syncthreads();
        for (int at = 0; at < 4; at++) {
            u32 r = draw(s), slot = (threadIdx.x * 7 + at * 13 + group) % SLOTS;
            add(&near, slot, r);
            add(far, slot, r);
        }
        __threadfence();
        __syncthreads();
        h = read(read(h, &near, threadIdx.x % SLOTS), far, threadIdx.x % SLOTS);
        __syncthreads();
    }
    return h;
}

// Registers of tensor cores: whole numbers of so few bits that sums are exact in any order, or all bits but NaN.

struct Bf16 {
    static __device__ u32 random(u32 r) { return (r & 0x87FF87FFu) + 0x3C003C00u; }
    static __device__ u32 half(int value) { return __float_as_uint((float)value) >> 16; }
    static __device__ u32 whole(u32 r) {
        return half((int)(r & 0xFFu) - 128) | (half((int)((r >> 8) & 0xFFu) - 128) << 16);
    }
};

struct Fp16 {
    static __device__ u32 random(u32 r) { return (r & 0x9FFF9FFFu) + 0x28002800u; }
    static __device__ u32 half(int value) {
        unsigned short bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"((float)value));
        return bits;
    }
    static __device__ u32 whole(u32 r) {
        return half((int)(r & 0xFFu) - 128) | (half((int)((r >> 8) & 0xFFu) - 128) << 16);
    }
};

struct Tf32 {
    static __device__ u32 random(u32 r) { return (r & 0x87FFE000u) + (120u << 23); }
    static __device__ u32 whole(u32 r) { return __float_as_uint((float)((int)(r & 0xFFu) - 128)); }
};

struct Fp8 {
    static __device__ u32 random(u32 r) { return r & 0xBFBFBFBFu; }
    // Bits 0 to 2 of each byte are a number from 0 to 7, bit 7 its sign.
    static __device__ u32 whole(u32 r) {
        u32 word = r & 0x80808080u;
        for (int at = 0; at < 32; at += 8)
            word |= (u32)((0x4E4C4A4844403800ull >> (8 * ((r >> at) & 7))) & 0xFF) << at;
        return word;
    }
};

template <class Kind> __device__ __forceinline__ u32 element(u32 set, u32 r) {
    return set < RANDOM_SET ? Kind::whole(r) : Kind::random(r);
}

template <class Kind> __device__ __forceinline__ void right_of(u32 set, u32 step, u32 lane, u32 *b) {
    u32 s = seed(set * STEPS + step + 0x10000u, lane);
    b[0] = element<Kind>(set, draw(s));
    b[1] = element<Kind>(set, draw(s));
}

#define MMA(shape, a_kind, c, a, b)                                                                          \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." a_kind "." a_kind                                 \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

#define TENSOR_PATH(name, Kind, shape, a_kind)                                                               \
    __device__ u32 of_##name(u32 set, void *) {                                                              \
        u32 s = seed(set, threadIdx.x), h = 0, a[4], b[2];                                                   \
        for (int step = 0; step < STEPS; step += GROUP) {                                                    \
            float c[4] = {0, 0, 0, 0};                                                                       \
            for (int at = 0; at < GROUP; at++) {                                                             \
                for (int i = 0; i < 4; i++) a[i] = element<Kind>(set, draw(s));                              \
                right_of<Kind>(set, step + at, threadIdx.x % 32, b);                                         \
                MMA(shape, a_kind, c, a, b);                                                                 \
            }                                                                                                \
            for (int i = 0; i < 4; i++) h = fold(h, __float_as_uint(c[i]));                                  \
        }                                                                                                    \
        return h;                                                                                            \
    }

#if __CUDA_ARCH__ >= 800
TENSOR_PATH(bf16, Bf16, "m16n8k16", "bf16")
TENSOR_PATH(tf32, Tf32, "m16n8k8", "tf32")
#endif
#if __CUDA_ARCH__ >= 800
TENSOR_PATH(fp16, Fp16, "m16n8k16", "f16")
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_FP8
// On Hopper mma.sync widens fp8 to fp16: only products of warp groups use the units of fp8.
__device__ u32 of_fp8(u32 set, void *) {
    __shared__ __align__(128) u32 right[GROUP][64];
    u32 s = seed(set, threadIdx.x), h = 0, a[4];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int step = 0; step < STEPS; step += GROUP) {
        __syncthreads();
        u32 b[2];
        right_of<Fp8>(set, step + warp, lane, b);
        // Two core matrices of 8 columns and 16 values each, one after the other.
        right[warp][lane] = b[0];
        right[warp][32 + lane] = b[1];
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        float c[4] = {0, 0, 0, 0};
        for (int at = 0; at < GROUP; at++) {
            for (int i = 0; i < 4; i++) a[i] = element<Fp8>(set, draw(s));
            u64 descriptor = (((u64)__cvta_generic_to_shared(right[at]) & 0x3FFFFu) >> 4) | (8ull << 16) | (8ull << 32);
            asm volatile("wgmma.fence.sync.aligned;\n"
                         "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
                         "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1;\n"
                         "wgmma.commit_group.sync.aligned;\n"
                         "wgmma.wait_group.sync.aligned 0;\n"
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor)
                         : "memory");
        }
        for (int i = 0; i < 4; i++) h = fold(h, __float_as_uint(c[i]));
    }
    return h;
}
#elif __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
#define HAS_FP8
TENSOR_PATH(fp8, Fp8, "m16n8k32", "e4m3")
#endif

#define PATH(name)                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                    \
        path_##name(u32 launch, u32 sets, const u32 *expected, u32 *answers, Slots *scratch, Report *report) { \
        u32 set = answers ? launch % sets : (launch + blockIdx.x) % sets;                                    \
        settle(of_##name(set, scratch + (blockIdx.x + launch % 7 * gridDim.x)), set, launch, expected,       \
               answers, report);                                                                             \
    }

PATH(fp32)
PATH(fp64)
PATH(special)
PATH(atomics)
#if __CUDA_ARCH__ >= 800
PATH(bf16)
PATH(fp16)
PATH(tf32)
#endif
#ifdef HAS_FP8
PATH(fp8)
#endif

__device__ __forceinline__ u64 pattern(u32 kind, u64 word) {
    u64 value = word;
    if (kind / 2 == 0) {
        value = (word + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
        value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
        value ^= value >> 31;
    } else if (kind / 2 == 1) {
        value = word % 2 ? 0xAAAAAAAAAAAAAAAAull : 0x5555555555555555ull;
    } else if (kind / 2 == 2) {
        value = 1ull << (word % 64);
    }
    return kind % 2 ? ~value : value;
}

extern "C" __global__ void __launch_bounds__(THREADS) fill(u64 *words, u64 count, u64 first, u32 kind) {
    u64 step = (u64)gridDim.x * THREADS;
    for (u64 at = (u64)blockIdx.x * THREADS + threadIdx.x; at < count; at += step)
        words[at] = pattern(kind, first + at);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    check(const u64 *words, u64 count, u64 first, u32 kind, u32 launch, Report *report) {
    u64 step = (u64)gridDim.x * THREADS;
    for (u64 at = (u64)blockIdx.x * THREADS + threadIdx.x; at < count; at += step) {
        u64 got = __ldcg(words + at);
        if (got != pattern(kind, first + at))
            keep(report, launch, (u32)((first + at) >> 32), (u32)(first + at), got, pattern(kind, first + at));
    }
    count_block(report, launch);
}
