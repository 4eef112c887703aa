// libcuda, second part: what a stream is given to do: launches, copies, memsets, graphs, events.
//
// Follows the "CUDA Driver API" reference (docs.nvidia.com/cuda/cuda-driver-api). An operation is
// over when the call returns, or it becomes a node of a graph if its stream is being captured.
// Copies between host and device are real, as the staging of pageable memory is with a real driver.
// Kernels do nothing, and what the host reads from the device is zeros unless it wrote it there.
#include "ideal_gpu.h"
#include <cupti_driver_cbid.h>

#define SMALL 4096  // bytes: a memset, or a copy on the device, of at most this size is real

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum kind { KERNEL, COPY, MEMSET, HOST_CALL, EMPTY, CHILD_GRAPH };
struct operation {
    enum kind kind;
    struct kernel *kernel;
    unsigned grid[6];  // blocks and threads, each in three dimensions
    uintptr_t to, from;
    size_t bytes;
    unsigned value, width;  // of a memset
    CUhostFn call;
    void *data;
    CUgraph child;  // this operation's own copy
};
struct CUgraphNode_st {
    struct operation operation;
    CUDA_KERNEL_NODE_PARAMS parameters;
    size_t index;
};
struct CUgraph_st { CUgraphNode *nodes; size_t count, room; int users; };
struct CUgraphExec_st { struct operation *operations; char *disabled; size_t count; };
struct CUstream_st { CUgraph captured; CUcontext context; unsigned flags; int priority; uint32_t number; };
struct CUevent_st { uint64_t time; };

static struct CUstream_st default_stream = {.number = 1};
static uint32_t last_stream = 10;

// The documentation's special streams (NULL, legacy, per thread) are small numbers.
static CUstream resolve(CUstream stream) { return (uintptr_t)stream <= 2 ? &default_stream : stream; }
uint32_t stream_number(CUstream stream) { return resolve(stream)->number; }

// ---- calls that a profiler may see ----

const struct profiler *profiler;
static __thread uint32_t current_call;
static uint32_t last_call;

// What CUPTI passes on of a call: its arguments, in their order.
typedef struct { CUfunction f; unsigned gx, gy, gz, bx, by, bz, shared; CUstream s; void **args, **extra; } cuLaunchKernel_params;
typedef struct { CUdeviceptr to; const void *from; size_t bytes; CUstream s; } cuMemcpyHtoDAsync_v2_params;
typedef struct { void *to; CUdeviceptr from; size_t bytes; CUstream s; } cuMemcpyDtoHAsync_v2_params;
typedef struct { CUdeviceptr to, from; size_t bytes; CUstream s; } cuMemcpyDtoDAsync_v2_params;
typedef struct { CUdeviceptr to; unsigned char value; size_t n; CUstream s; } cuMemsetD8Async_params;
typedef struct { CUdeviceptr to; unsigned value; size_t n; CUstream s; } cuMemsetD32Async_params;
typedef struct { CUstream s; } cuStreamSynchronize_params;
typedef struct { CUgraphExec graph; CUstream s; } cuGraphLaunch_params;

#define TRACED(function, kernel_name, action, ...) ({                                              \
    const struct profiler *observer = profiler;                                                   \
    CUresult outcome;                                                                              \
    if (__builtin_expect(!observer, 1)) {                                                         \
        outcome = (action);                                                                        \
    } else {                                                                                       \
        function##_params arguments = {__VA_ARGS__};                                               \
        int id = CUPTI_DRIVER_TRACE_CBID_##function;                                               \
        uint64_t data = 0;                                                                         \
        uint32_t call = current_call = __atomic_add_fetch(&last_call, 1, __ATOMIC_RELAXED);        \
        observer->on_call(0, id, #function, &arguments, kernel_name, call, &data);                 \
        outcome = (action);                                                                        \
        observer->on_call(1, id, #function, &arguments, kernel_name, call, &data);                 \
    }                                                                                              \
    outcome; })

static void report(int kind, const struct operation *operation, uint32_t stream)
{
    const struct profiler *observer = profiler;
    if (observer)
        observer->on_activity(&(struct activity){
            kind, operation->kernel, operation->grid, operation->bytes, is_on_device(operation->from),
            is_on_device(operation->to), stream, current_call});
}

// ---- what the host may read back: the places that it wrote last, by address ----

static struct { uintptr_t address; size_t bytes; } written[1 << 16];

static void note_written(uintptr_t address, size_t bytes)
{
    unsigned i = (address >> 8) % LENGTH(written);
    written[i].address = address;
    written[i].bytes = bytes;
}

static int is_written(uintptr_t address, size_t bytes)
{
    unsigned i = (address >> 8) % LENGTH(written);
    return written[i].address == address && written[i].bytes == bytes;
}

static int next_bool(void)
{
    static unsigned reads;
    unsigned i = __atomic_fetch_add(&reads, 1, __ATOMIC_RELAXED);
    return settings.bools[i % strlen(settings.bools)] == '1';
}

// ---- performing an operation ----

// The device's own clock: a microsecond per operation. TensorFlow's autotuning then finds every
// choice equally fast, and takes the first.
static uint64_t device_ns;

static void copy(const struct operation *operation)
{
    void *to = (void *)operation->to;
    void *from = (void *)operation->from;
    size_t bytes = operation->bytes;
    int to_device = is_on_device(operation->to);
    int from_device = is_on_device(operation->from);
    if (to_device && from_device) {
        if (bytes <= SMALL)
            memmove(to, from, bytes);
        note_written(operation->to, 0);
        count(ON_DEVICE, 1);
        count(ON_DEVICE_BYTES, bytes);
        LOG("copy on_device %zu\n", bytes);
    } else if (to_device) {
        memcpy(to, from, bytes);
        note_written(operation->to, bytes);
        count(TO_DEVICE, 1);
        count(TO_DEVICE_BYTES, bytes);
        LOG("copy to_device %zu\n", bytes);
    } else if (from_device) {
        if (is_written(operation->from, bytes))
            memcpy(to, from, bytes);
        else
            memset(to, bytes == 1 ? next_bool() : 0, bytes);
        count(TO_HOST, 1);
        count(TO_HOST_BYTES, bytes);
        LOG("copy to_host %zu\n", bytes);
    } else {
        memmove(to, from, bytes);
    }
}

static void set_memory(const struct operation *operation)
{
    char *to = (char *)operation->to;
    unsigned width = operation->width;
    if (operation->bytes <= SMALL)
        for (size_t i = 0; i < operation->bytes; i += width)
            memcpy(to + i, &operation->value, width);
    note_written(operation->to, operation->bytes);
    count(MEMSETS, 1);
    LOG("memset %zu\n", operation->bytes);
}

// TensorFlow's own function: what it takes is not the stand-in's time.
static void call_host(CUhostFn call, void *data)
{
    uint64_t start = ticks();
    call(data);
    tally()->counts[TICKS] -= ticks() - start;
}

static void perform(const struct operation *operation, uint32_t stream)
{
    __atomic_fetch_add(&device_ns, 1000, __ATOMIC_RELAXED);
    switch (operation->kind) {
    case KERNEL:
        count(operation->kernel->counter, 1);
        report(KERNEL_ACTIVITY, operation, stream);
        LOG("kernel %d %s\n", operation->kernel->counter, operation->kernel->name);
        break;
    case COPY:
        copy(operation);
        report(COPY_ACTIVITY, operation, stream);
        break;
    case MEMSET:
        set_memory(operation);
        report(MEMSET_ACTIVITY, operation, stream);
        break;
    case HOST_CALL:
        call_host(operation->call, operation->data);
        break;
    case CHILD_GRAPH:
        for (size_t i = 0; i < operation->child->count; i++)
            perform(&operation->child->nodes[i]->operation, stream);
        break;
    case EMPTY:
        break;
    }
}

static CUgraphNode add_node(CUgraph graph, struct operation operation)
{
    CUgraphNode node = calloc(1, sizeof *node);
    node->operation = operation;
    node->index = graph->count;
    if (graph->count == graph->room) {
        graph->room = 2 * graph->room + 8;
        graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
    }
    graph->nodes[graph->count++] = node;
    return node;
}

static CUresult submit(CUstream stream, struct operation operation)
{
    stream = resolve(stream);
    count(SUBMISSIONS, 1);
    spend_added_time();
    if (stream->captured)
        add_node(stream->captured, operation);
    else
        perform(&operation, stream->number);
    return OK;
}

static CUresult wait_for_device(const char *name)
{
    count(WAITS, 1);
    LOG("wait %s\n", name);
    return OK;
}

// ---- launches ----

int launch(struct kernel *kernel, const unsigned grid[6], CUstream stream)
{
    struct operation operation = {.kind = KERNEL, .kernel = kernel};
    memcpy(operation.grid, grid, sizeof operation.grid);
    return TRACED(cuLaunchKernel, kernel->name, submit(stream, operation), (CUfunction)kernel, grid[0],
                  grid[1], grid[2], grid[3], grid[4], grid[5], 0, stream, NULL, NULL);
}
CUresult cuLaunchKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **arguments, void **extra)
{
    API;
    return launch((struct kernel *)kernel, (unsigned[]){gx, gy, gz, bx, by, bz}, stream);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction kernel, void **arguments, void **extra)
{
    API;
    unsigned grid[] = {c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ};
    return launch((struct kernel *)kernel, grid, c->hStream);
}
CUresult cuLaunchCooperativeKernel(CUfunction kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream, void **arguments)
{
    API;
    return launch((struct kernel *)kernel, (unsigned[]){gx, gy, gz, bx, by, bz}, stream);
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn call, void *data)
{
    API;
    return submit(stream, (struct operation){.kind = HOST_CALL, .call = call, .data = data});
}
// The names that were made so far, by function and shape.
struct named_call { const char *name; int64_t shape[8]; struct kernel *kernel; struct named_call *next; };
static struct named_call *named_calls[1024];

static struct kernel *name_library_call(const char *name, const int64_t *shape, int dimensions)
{
    uint64_t hash = (uintptr_t)name;
    for (int i = 0; i < dimensions; i++)
        hash = (hash ^ (uint64_t)shape[i]) * 0x9E3779B97F4A7C15ull;
    struct named_call **bucket = &named_calls[hash >> 54];
    struct named_call *known = __atomic_load_n(bucket, __ATOMIC_ACQUIRE);
    for (; known; known = known->next)
        if (known->name == name && !memcmp(known->shape, shape, dimensions * sizeof *shape))
            return known->kernel;
    char text[256];
    int length = snprintf(text, sizeof text, "%s", name);
    for (int i = 0; i < dimensions; i++)
        length += snprintf(text + length, sizeof text - length, i ? "x%ld" : "_%ld", (long)shape[i]);
    known = calloc(1, sizeof *known);
    known->name = name;
    memcpy(known->shape, shape, dimensions * sizeof *shape);
    known->kernel = new_kernel(strdup(text), LIBRARY_CALLS);
    pthread_mutex_lock(&lock);
    known->next = *bucket;
    __atomic_store_n(bucket, known, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return known->kernel;
}

int launch_library_call(const char *name, const int64_t *shape, int dimensions, CUstream stream)
{
    static const unsigned one_thread[6] = {1, 1, 1, 1, 1, 1};
    return launch(name_library_call(name, shape, dimensions), one_thread, stream);
}

// ---- copies and memsets ----

static CUresult submit_copy(CUstream stream, uintptr_t to, uintptr_t from, size_t bytes)
{
    if (!bytes)
        return OK;
    return submit(stream, (struct operation){.kind = COPY, .to = to, .from = from, .bytes = bytes});
}
static CUresult copy_and_wait(const char *name, uintptr_t to, uintptr_t from, size_t bytes)
{
    wait_for_device(name);
    return submit_copy(NULL, to, from, bytes);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    API;
    return TRACED(cuMemcpyHtoDAsync_v2, NULL, submit_copy(stream, to, (uintptr_t)from, bytes), to, from,
                  bytes, stream);
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    API;
    return TRACED(cuMemcpyDtoHAsync_v2, NULL, submit_copy(stream, (uintptr_t)to, from, bytes), to, from,
                  bytes, stream);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    API;
    return TRACED(cuMemcpyDtoDAsync_v2, NULL, submit_copy(stream, to, from, bytes), to, from, bytes, stream);
}
// Which way a copy goes follows from the addresses.
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (is_on_device(to) && is_on_device(from))
        return cuMemcpyDtoDAsync(to, from, bytes, stream);
    if (is_on_device(to))
        return cuMemcpyHtoDAsync(to, (void *)from, bytes, stream);
    return cuMemcpyDtoHAsync((void *)to, from, bytes, stream);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext a, CUdeviceptr from, CUcontext b, size_t bytes,
                           CUstream stream)
{
    return cuMemcpyDtoDAsync(to, from, bytes, stream);
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
    API;
    return copy_and_wait("cuMemcpyHtoD", to, (uintptr_t)from, bytes);
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
    API;
    return copy_and_wait("cuMemcpyDtoH", (uintptr_t)to, from, bytes);
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    API;
    return copy_and_wait("cuMemcpyDtoD", to, from, bytes);
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    API;
    return copy_and_wait("cuMemcpy", to, from, bytes);
}

static CUresult submit_memset(CUstream stream, CUdeviceptr to, unsigned value, unsigned width, size_t count)
{
    return submit(stream, (struct operation){.kind = MEMSET, .to = to, .value = value, .width = width,
                                             .bytes = count * width});
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    API;
    return TRACED(cuMemsetD8Async, NULL, submit_memset(stream, to, value, 1, count), to, value, count, stream);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
    API;
    return submit_memset(stream, to, value, 2, count);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    API;
    return TRACED(cuMemsetD32Async, NULL, submit_memset(stream, to, value, 4, count), to, value, count, stream);
}
CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t n) { return cuMemsetD8Async(to, value, n, NULL); }
CUresult cuMemsetD32(CUdeviceptr to, unsigned value, size_t n) { return cuMemsetD32Async(to, value, n, NULL); }

// ---- streams ----

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    API;
    *stream = calloc(1, sizeof **stream);
    (*stream)->flags = flags;
    (*stream)->priority = priority;
    cuCtxGetCurrent(&(*stream)->context);
    (*stream)->number = __atomic_add_fetch(&last_stream, 1, __ATOMIC_RELAXED);
    return OK;
}
CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
CUresult cuStreamDestroy(CUstream stream) { API; free(stream); return OK; }
CUresult cuStreamSynchronize(CUstream stream)
{
    API;
    return TRACED(cuStreamSynchronize, NULL, wait_for_device("cuStreamSynchronize"), stream);
}
CUresult cuCtxSynchronize(void) { API; return wait_for_device("cuCtxSynchronize"); }
CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    API;
    *priority = resolve(stream)->priority;
    return OK;
}
CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) { API; *flags = resolve(stream)->flags; return OK; }
CUresult cuStreamGetId(CUstream stream, unsigned long long *id) { API; *id = stream_number(stream); return OK; }
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    API;
    if (resolve(stream) == &default_stream)
        return cuCtxGetCurrent(context);
    *context = stream->context;
    return OK;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    API;
    *status = resolve(stream)->captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return OK;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    API;
    static __thread CUstreamCaptureMode kept;
    CUstreamCaptureMode old = kept;
    kept = *mode;
    *mode = old;
    return OK;
}

// ---- events ----

CUresult cuEventCreate(CUevent *event, unsigned flags) { API; *event = calloc(1, sizeof **event); return OK; }
CUresult cuEventDestroy(CUevent event) { API; free(event); return OK; }
CUresult cuEventRecord(CUevent event, CUstream stream) { API; event->time = device_ns; return OK; }
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    return cuEventRecord(event, stream);
}
CUresult cuEventSynchronize(CUevent event) { API; return wait_for_device("cuEventSynchronize"); }
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    API;
    *ms = end->time > start->time ? (end->time - start->time) * 1e-6f : 1e-3f;
    return OK;
}

// ---- graphs ----

static CUgraph new_graph(void)
{
    CUgraph graph = calloc(1, sizeof *graph);
    graph->users = 1;
    return graph;
}

static CUgraph share(CUgraph graph)
{
    if (graph)
        __atomic_fetch_add(&graph->users, 1, __ATOMIC_RELAXED);
    return graph;
}

static void drop(CUgraph graph)
{
    if (!graph || __atomic_fetch_sub(&graph->users, 1, __ATOMIC_RELAXED) > 1)
        return;
    for (size_t i = 0; i < graph->count; i++) {
        drop(graph->nodes[i]->operation.child);
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    free(graph);
}

static CUgraph copy_graph(CUgraph graph)
{
    CUgraph twin = new_graph();
    for (size_t i = 0; i < graph->count; i++)
        share(add_node(twin, graph->nodes[i]->operation)->operation.child);
    return twin;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    API;
    resolve(stream)->captured = new_graph();
    return OK;
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                     const CUgraphEdgeData *edges, size_t n, CUstreamCaptureMode mode)
{
    API;
    resolve(stream)->captured = graph;
    return OK;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    API;
    *graph = resolve(stream)->captured;
    resolve(stream)->captured = NULL;
    return OK;
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **after, size_t *n)
{
    API;
    CUgraph captured = resolve(stream)->captured;
    int has_nodes = captured && captured->count;
    cuStreamIsCapturing(stream, status);
    if (id)
        *id = stream_number(stream);
    if (graph)
        *graph = captured;
    if (after)
        *after = has_nodes ? &captured->nodes[captured->count - 1] : NULL;
    if (n)
        *n = has_nodes;
    return OK;
}
CUresult cuGraphCreate(CUgraph *graph, unsigned flags) { API; *graph = new_graph(); return OK; }
CUresult cuGraphDestroy(CUgraph graph) { API; drop(graph); return OK; }

static struct operation kernel_operation(const CUDA_KERNEL_NODE_PARAMS *p)
{
    void *kernel = p->func ? (void *)p->func : (void *)p->kern;
    return (struct operation){.kind = KERNEL, .kernel = kernel, .grid = {
        p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ}};
}
static struct operation copy_operation(const CUDA_MEMCPY3D *p)
{
    int to_host = p->dstMemoryType == CU_MEMORYTYPE_HOST;
    int from_host = p->srcMemoryType == CU_MEMORYTYPE_HOST;
    return (struct operation){.kind = COPY, .to = to_host ? (uintptr_t)p->dstHost : p->dstDevice,
                              .from = from_host ? (uintptr_t)p->srcHost : p->srcDevice,
                              .bytes = p->WidthInBytes * p->Height * p->Depth};
}
static struct operation memset_operation(const CUDA_MEMSET_NODE_PARAMS *p)
{
    return (struct operation){.kind = MEMSET, .to = p->dst, .value = p->value, .width = p->elementSize,
                              .bytes = p->width * p->height * p->elementSize};
}
static struct operation child_operation(CUgraph graph)
{
    return (struct operation){.kind = CHILD_GRAPH, .child = copy_graph(graph)};
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n,
                              const CUDA_KERNEL_NODE_PARAMS *p)
{
    API;
    *node = add_node(graph, kernel_operation(p));
    (*node)->parameters = *p;
    return OK;
}
CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n,
                              const CUDA_MEMCPY3D *p, CUcontext context)
{
    API;
    *node = add_node(graph, copy_operation(p));
    return OK;
}
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n,
                              const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
{
    API;
    *node = add_node(graph, memset_operation(p));
    return OK;
}
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n,
                                  CUgraph child)
{
    API;
    *node = add_node(graph, child_operation(child));
    return OK;
}
CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t n)
{
    API;
    *node = add_node(graph, (struct operation){.kind = EMPTY});
    return OK;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
    API;
    for (size_t i = 0; nodes && i < *n && i < graph->count; i++)
        nodes[i] = graph->nodes[i];
    *n = graph->count;
    return OK;
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    API;
    static const CUgraphNodeType types[] = {
        [KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL, [COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [MEMSET] = CU_GRAPH_NODE_TYPE_MEMSET, [HOST_CALL] = CU_GRAPH_NODE_TYPE_HOST,
        [EMPTY] = CU_GRAPH_NODE_TYPE_EMPTY,   [CHILD_GRAPH] = CU_GRAPH_NODE_TYPE_GRAPH};
    *type = types[node->operation.kind];
    return OK;
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *p)
{
    API;
    *p = node->parameters;
    return OK;
}

// ---- graphs that are ready to run: a copy of their operations ----

static void forget_operations(CUgraphExec ready)
{
    for (size_t i = 0; i < ready->count; i++)
        drop(ready->operations[i].child);
    free(ready->operations);
    free(ready->disabled);
}

static void take_operations(CUgraphExec ready, CUgraph graph)
{
    ready->count = graph->count;
    ready->operations = calloc(graph->count + 1, sizeof *ready->operations);
    ready->disabled = calloc(graph->count + 1, 1);
    for (size_t i = 0; i < graph->count; i++) {
        ready->operations[i] = graph->nodes[i]->operation;
        share(ready->operations[i].child);
    }
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *ready, CUgraph graph, unsigned long long flags)
{
    API;
    *ready = calloc(1, sizeof **ready);
    take_operations(*ready, graph);
    return OK;
}
CUresult cuGraphInstantiateWithParams(CUgraphExec *ready, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    p->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return cuGraphInstantiateWithFlags(ready, graph, 0);
}
CUresult cuGraphExecDestroy(CUgraphExec ready) { API; forget_operations(ready); free(ready); return OK; }
CUresult cuGraphExecGetFlags(CUgraphExec ready, cuuint64_t *flags) { API; *flags = 0; return OK; }
CUresult cuGraphExecUpdate(CUgraphExec ready, CUgraph graph, CUgraphExecUpdateResultInfo *result)
{
    API;
    forget_operations(ready);
    take_operations(ready, graph);
    result->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    return OK;
}

static CUresult replace(CUgraphExec ready, CUgraphNode node, struct operation operation)
{
    drop(ready->operations[node->index].child);
    ready->operations[node->index] = operation;
    return OK;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec ready, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
    API;
    return replace(ready, node, kernel_operation(p));
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec ready, CUgraphNode node, const CUDA_MEMCPY3D *p,
                                        CUcontext context)
{
    API;
    return replace(ready, node, copy_operation(p));
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec ready, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p,
                                        CUcontext context)
{
    API;
    return replace(ready, node, memset_operation(p));
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec ready, CUgraphNode node, CUgraph graph)
{
    API;
    return replace(ready, node, child_operation(graph));
}
CUresult cuGraphNodeSetEnabled(CUgraphExec ready, CUgraphNode node, unsigned enabled)
{
    API;
    ready->disabled[node->index] = !enabled;
    return OK;
}

static uint64_t kernels_so_far(void)
{
    uint64_t *counts = tally()->counts;
    return counts[TENSORFLOW_KERNELS] + counts[XLA_KERNELS] + counts[LIBRARY_CALLS];
}

static CUresult run_graph(CUgraphExec ready, CUstream stream)
{
    uint64_t before = kernels_so_far();
    count(SUBMISSIONS, 1);
    count(GRAPH_LAUNCHES, 1);
    spend_added_time();
    LOG("graph %zu\n", ready->count);
    for (size_t i = 0; i < ready->count; i++)
        if (!ready->disabled[i])
            perform(&ready->operations[i], stream_number(stream));
    count(GRAPH_KERNELS, kernels_so_far() - before);
    return OK;
}
CUresult cuGraphLaunch(CUgraphExec ready, CUstream stream)
{
    API;
    return TRACED(cuGraphLaunch, NULL, run_graph(ready, stream), ready, stream);
}
