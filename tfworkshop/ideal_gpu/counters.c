// Settings, counters, the log, and what the stand-in itself costs. Nothing of CUDA's.
//
// The environment variables that are read here are listed in README.md.
#include "ideal_gpu.h"
#include <time.h>

struct settings settings = {.bools = "0"};
__thread struct tally *own_tally;
static struct tally *tallies;
static uint64_t first_ticks, first_ns, added_ticks;

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static double ns_per_tick(void)
{
    return (double)(clock_ns() - first_ns) / (ticks() - first_ticks);
}

static double number(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atof(text) : otherwise;
}

// CUDA_VISIBLE_DEVICES, as the CUDA programming guide describes it: numbers, up to the first that is
// not a device's.
static int count_visible(const char *list)
{
    int devices = 0;
    while (*list && devices < settings.devices) {
        char *end;
        long device = strtol(list, &end, 10);
        if (end == list || device < 0 || device >= settings.devices)
            break;
        devices++;
        list = *end == ',' ? end + 1 : end;
    }
    return devices;
}

__attribute__((constructor(101))) static void start(void)
{
    settings.devices = number("IDEAL_GPU_DEVICES", 1);
    if (settings.devices > MOST_DEVICES)
        settings.devices = MOST_DEVICES;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible)
        settings.devices = count_visible(visible);
    settings.capability = 10 * number("IDEAL_GPU_CAPABILITY", 8.0) + 0.5;
    settings.memory = (size_t)number("IDEAL_GPU_MEMORY_MB", 40960) << 20;
    settings.added_ns = number("IDEAL_GPU_ADDED_NS", 0);
    settings.cupti_error = number("IDEAL_GPU_CUPTI_ERROR", 0);
    if (getenv("IDEAL_GPU_BOOLS") && *getenv("IDEAL_GPU_BOOLS"))
        settings.bools = getenv("IDEAL_GPU_BOOLS");
    const char *log = getenv("IDEAL_GPU_LOG");
    if (log && *log)
        settings.log = fopen(log, "a");
    if (settings.log)
        setvbuf(settings.log, NULL, _IOFBF, 1 << 20);
    first_ns = clock_ns();
    first_ticks = ticks();
    if (settings.added_ns) {  // the processor's ticks are measured once, for 20 ms
        while (clock_ns() < first_ns + 20000000)
            ;
        added_ticks = settings.added_ns / ns_per_tick();
    }
}

__attribute__((destructor)) static void finish(void)
{
    if (settings.log)
        fflush(settings.log);
}

struct tally *new_tally(void)
{
    own_tally = calloc(1, sizeof *own_tally);
    own_tally->next = __atomic_load_n(&tallies, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&tallies, &own_tally->next, own_tally, 0, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        ;
    return own_tally;
}

// Not the stand-in's own time: it is taken off again.
void spend_added_time(void)
{
    if (__builtin_expect(added_ticks == 0, 1))
        return;
    uint64_t start = ticks();
    while (ticks() < start + added_ticks)
        __builtin_ia32_pause();
    tally()->counts[TICKS] -= ticks() - start;
}

int not_implemented(const char *name, int *said, int error)
{
    if (!*said)
        fprintf(stderr, "ideal GPU: %s is not implemented\n", name);
    *said = 1;
    LOG("missing %s\n", name);
    return error;
}

// ---- for programs that count: by ctypes ----

// Fills in the sums over all threads; instead of the ticks, nanoseconds. Returns how many there are.
int ideal_gpu_counts(uint64_t *values)
{
    memset(values, 0, COUNTERS * sizeof *values);
    for (struct tally *t = __atomic_load_n(&tallies, __ATOMIC_ACQUIRE); t; t = t->next)
        for (int i = 0; i < COUNTERS; i++)
            values[i] += t->counts[i];
    values[TICKS] *= ns_per_tick();
    return COUNTERS;
}

void ideal_gpu_mark(const char *text)
{
    LOG("mark %s\n", text);
    if (settings.log)
        fflush(settings.log);
}
