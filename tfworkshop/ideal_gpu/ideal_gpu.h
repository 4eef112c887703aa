// What the parts of the ideal GPU share. README.md says how they fit together.
#pragma once
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK 0  // the value of success in all of these libraries
#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define MOST_DEVICES 8

// ---- settings and counters: counters.c ----

struct settings {
    int devices;
    int capability;      // 80 is compute capability 8.0
    size_t memory;       // bytes of each device
    uint64_t added_ns;   // busy time that each submission costs, as a driver's call would
    const char *bools;   // what the host reads where it reads one byte: "10" is true, false, ...
    int cupti_error;     // what cuptiSubscribe returns
    FILE *log;           // a line for each operation, or NULL
};
extern struct settings settings;

enum counter {
    TENSORFLOW_KERNELS,  // compiled into TensorFlow's libraries, or made by it for an operation
    XLA_KERNELS,         // compiled by XLA while the program runs
    LIBRARY_CALLS,       // of cuBLAS and cuDNN: each is one launch
    GRAPH_LAUNCHES,
    GRAPH_KERNELS,       // those of the above that a graph launch started
    TO_DEVICE, TO_DEVICE_BYTES,
    TO_HOST, TO_HOST_BYTES,
    ON_DEVICE, ON_DEVICE_BYTES,
    MEMSETS,
    WAITS,               // calls in which the host waits for the device
    MODULES,             // loaded: what was compiled while the program runs
    SUBMISSIONS,         // calls that give the device work
    CALLS,               // of any function of these libraries
    TICKS,               // spent in them, of the processor's time stamp counter
    COUNTERS
};

// Each thread counts for itself, so that counting needs no lock.
struct tally {
    uint64_t counts[COUNTERS];
    int depth;  // of calls into these libraries
    struct tally *next;
};
extern __thread struct tally *own_tally;
struct tally *new_tally(void);

static inline struct tally *tally(void) { return own_tally ? own_tally : new_tally(); }
static inline void count(enum counter counter, uint64_t amount) { tally()->counts[counter] += amount; }
static inline uint64_t ticks(void) { return __builtin_ia32_rdtsc(); }

struct visit { struct tally *tally; uint64_t start; };
static inline struct visit enter(void)
{
    struct tally *t = tally();
    return (struct visit){t, t->depth++ ? 0 : ticks()};
}
static inline void leave(struct visit *visit)
{
    struct tally *t = visit->tally;
    if (--t->depth == 0) {
        t->counts[CALLS]++;
        t->counts[TICKS] += ticks() - visit->start;
    }
}
// The first statement of every function that TensorFlow may call: its cost is the stand-in's own.
#define API struct visit visit_ __attribute__((cleanup(leave), unused)) = enter()

#define LOG(...) do { if (__builtin_expect(settings.log != NULL, 0)) fprintf(settings.log, __VA_ARGS__); } while (0)

void spend_added_time(void);
int not_implemented(const char *name, int *said, int error);

// ---- devices, memory and kernels: cuda.c ----

// A kernel of TensorFlow, of XLA, or the call of a library.
struct kernel {
    const char *name;
    enum counter counter;
    int attributes[CU_FUNC_ATTRIBUTE_MAX];
    struct kernel *next;  // of the same module
};
struct kernel *new_kernel(const char *name, enum counter counter);  // keeps the name

int current_device(void);
int device_attribute(int key, int device);
int resident_blocks(int threads, size_t shared_memory);
int is_on_device(uintptr_t address);
CUcontext primary_context(int device);

// ---- work: cuda_work.c ----

int launch(struct kernel *kernel, const unsigned grid[6], CUstream stream);
// A library's call as a kernel, named after the function and the shape that it was given.
int launch_library_call(const char *name, const int64_t *shape, int dimensions, CUstream stream);
uint32_t stream_number(CUstream stream);

// ---- for a profiler: cupti.c ----

struct activity {
    enum { KERNEL_ACTIVITY, COPY_ACTIVITY, MEMSET_ACTIVITY } kind;
    const struct kernel *kernel;
    const unsigned *grid;
    size_t bytes;
    int from_device, to_device;
    uint32_t stream, call;  // the number of the call that caused it
};
struct profiler {
    void (*on_call)(int ends, int id, const char *name, const void *arguments, const char *kernel,
                    uint32_t call, uint64_t *data);
    void (*on_activity)(const struct activity *);
};
extern const struct profiler *profiler;  // NULL while none is attached
