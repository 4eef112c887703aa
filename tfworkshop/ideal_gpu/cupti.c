// libcupti: tells a profiler of each call that gives the device work, and of what the device did.
// The "device" is given a microsecond for each operation: TensorFlow's profile shows that it
// happened and in which order, and no time that means anything.
//
// Follows the CUPTI documentation (docs.nvidia.com/cupti): callback and activity API.
#include "ideal_gpu.h"
#include <cupti.h>
#include <time.h>

#define DURATION_NS 1000

static CUpti_CallbackFunc callback;
static void *callback_data;
static char enabled_calls[2048], enabled_kinds[CUPTI_ACTIVITY_KIND_COUNT];
static CUpti_BuffersCallbackRequestFunc request_buffer;
static CUpti_BuffersCallbackCompleteFunc complete_buffer;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

union record {
    CUpti_Activity any;
    CUpti_ActivityKernel9 kernel;
    CUpti_ActivityMemcpy5 copy;
    CUpti_ActivityMemset4 memset;
};
static union record *records;
static size_t record_count, record_room;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static size_t record_size(CUpti_ActivityKind kind)
{
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy5);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    default: return sizeof(CUpti_ActivityKernel9);
    }
}

// ---- from cuda_work.c ----

static void on_call(int ends, int id, const char *name, const void *arguments, const char *kernel,
                    uint32_t call, uint64_t *data)
{
    CUresult success = CUDA_SUCCESS;
    CUpti_CallbackData info = {
        .callbackSite = ends ? CUPTI_API_EXIT : CUPTI_API_ENTER, .functionName = name,
        .functionParams = arguments, .functionReturnValue = &success, .symbolName = kernel,
        .context = primary_context(current_device()), .contextUid = 1, .correlationData = data,
        .correlationId = call};
    if (callback && id < (int)sizeof enabled_calls && enabled_calls[id])
        callback(callback_data, CUPTI_CB_DOMAIN_DRIVER_API, id, &info);
}

static CUpti_ActivityMemcpyKind copy_kind(const struct activity *activity)
{
    if (activity->from_device && activity->to_device)
        return CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
    if (activity->from_device)
        return CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
    return activity->to_device ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD : CUPTI_ACTIVITY_MEMCPY_KIND_HTOH;
}

// The fields that all three kinds of records have.
#define FILL_IN(record, activity, time)                                                            \
    (record).start = (time);                                                                       \
    (record).end = (time) + DURATION_NS;                                                           \
    (record).deviceId = current_device();                                                          \
    (record).contextId = 1;                                                                        \
    (record).streamId = (activity)->stream;                                                        \
    (record).correlationId = (activity)->call

static void on_activity(const struct activity *activity)
{
    union record r = {{0}};
    uint64_t time = now();
    const unsigned *grid = activity->grid;
    switch (activity->kind) {
    case KERNEL_ACTIVITY:
        r.kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        if (enabled_kinds[CUPTI_ACTIVITY_KIND_KERNEL])
            r.kernel.kind = CUPTI_ACTIVITY_KIND_KERNEL;
        FILL_IN(r.kernel, activity, time);
        r.kernel.completed = r.kernel.end;
        r.kernel.name = activity->kernel->name;
        r.kernel.registersPerThread = 32;
        r.kernel.gridX = grid[0];
        r.kernel.gridY = grid[1];
        r.kernel.gridZ = grid[2];
        r.kernel.blockX = grid[3];
        r.kernel.blockY = grid[4];
        r.kernel.blockZ = grid[5];
        break;
    case COPY_ACTIVITY:
        r.copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
        FILL_IN(r.copy, activity, time);
        r.copy.bytes = activity->bytes;
        r.copy.copyKind = copy_kind(activity);
        r.copy.srcKind = CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
        if (activity->from_device)
            r.copy.srcKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
        r.copy.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
        if (activity->to_device)
            r.copy.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
        r.copy.flags = CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC;
        break;
    case MEMSET_ACTIVITY:
        r.memset.kind = CUPTI_ACTIVITY_KIND_MEMSET;
        FILL_IN(r.memset, activity, time);
        r.memset.bytes = activity->bytes;
        r.memset.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
        break;
    }
    if (!enabled_kinds[r.any.kind])
        return;
    pthread_mutex_lock(&lock);
    if (record_count == record_room) {
        record_room = 2 * record_room + 1024;
        records = realloc(records, record_room * sizeof *records);
    }
    records[record_count++] = r;
    pthread_mutex_unlock(&lock);
}

static const struct profiler observer = {on_call, on_activity};

// ---- for the profiler ----

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc function, void *data)
{
    if (settings.cupti_error)
        return settings.cupti_error;
    callback = function;
    callback_data = data;
    *subscriber = (CUpti_SubscriberHandle)&observer;
    profiler = &observer;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) { profiler = NULL; return CUPTI_SUCCESS; }
CUptiResult cuptiFinalize(void) { profiler = NULL; return CUPTI_SUCCESS; }
CUptiResult cuptiEnableCallback(uint32_t on, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain,
                                CUpti_CallbackId id)
{
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API && id < sizeof enabled_calls)
        enabled_calls[id] = on;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableDomain(uint32_t on, CUpti_SubscriberHandle subscriber, CUpti_CallbackDomain domain)
{
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API)
        memset(enabled_calls, on, sizeof enabled_calls);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { enabled_kinds[kind] = 1; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { enabled_kinds[kind] = 0; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete)
{
    request_buffer = request;
    complete_buffer = complete;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    pthread_mutex_lock(&lock);
    union record *ready = records;
    size_t count = record_count;
    records = NULL;
    record_count = record_room = 0;
    pthread_mutex_unlock(&lock);
    size_t i = 0;
    while (i < count && request_buffer) {
        uint8_t *buffer;
        size_t room, most, used = 0;
        request_buffer(&buffer, &room, &most);
        for (; i < count && used + record_size(ready[i].any.kind) <= room; i++) {
            memcpy(buffer + used, &ready[i], record_size(ready[i].any.kind));
            used += record_size(ready[i].any.kind);
        }
        complete_buffer(NULL, 0, buffer, room, used);
    }
    free(ready);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + record_size((*record)->kind) : buffer;
    if (next >= buffer + valid)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
    *dropped = 0;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(uint64_t *time) { *time = now(); return CUPTI_SUCCESS; }
CUptiResult cuptiGetDeviceId(CUcontext context, uint32_t *device)
{
    CUdevice i;
    cuCtxPushCurrent(context);
    cuCtxGetDevice(&i);
    cuCtxPopCurrent(NULL);
    *device = i;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetContextId(CUcontext context, uint32_t *id) { *id = 1; return CUPTI_SUCCESS; }
CUptiResult cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t per_thread, uint32_t *id)
{
    *id = stream_number(stream);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetGraphId(CUgraph graph, uint32_t *id) { *id = (uintptr_t)graph >> 4; return CUPTI_SUCCESS; }
CUptiResult cuptiGetVersion(uint32_t *version) { *version = CUPTI_API_VERSION; return CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult error, const char **text)
{
    *text = "CUPTI_ERROR_UNKNOWN";
    if (error == CUPTI_SUCCESS)
        *text = "CUPTI_SUCCESS";
    if (error == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
        *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
    return CUPTI_SUCCESS;
}
