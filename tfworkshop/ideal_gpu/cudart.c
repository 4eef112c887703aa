// libcudart, as far as it differs from libcuda: the kernels that are compiled into TensorFlow's
// libraries, and devices by number. functions.txt lists what is the same in both.
//
// Follows the "CUDA Runtime API" reference (docs.nvidia.com/cuda/cuda-runtime-api). The functions that
// start with __cuda are called by the code that nvcc and clang generate for a kernel; clang's
// lib/CodeGen/CGCUDANV.cpp shows their declarations.
#include "ideal_gpu.h"
#include <cuda_runtime_api.h>

static __thread cudaError_t last_error;
static cudaError_t result(int error)  // the driver and the runtime number their errors alike
{
    if (error)
        last_error = error;
    return error;
}

// ---- kernels and variables, by the host's address that stands for them: a hash table ----

struct symbol { const void *host; const char *name; struct kernel *kernel; CUdeviceptr address; size_t size; };
static struct symbol *symbols;
static size_t symbol_count, symbol_room;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

static struct symbol *find_slot(struct symbol *table, size_t room, const void *host)
{
    size_t i = ((uintptr_t)host * 0x9E3779B97F4A7C15ull >> 20) & (room - 1);
    while (table[i].host && table[i].host != host)
        i = (i + 1) & (room - 1);
    return &table[i];
}

static void add_symbol(const void *host, const char *name, size_t size)
{
    pthread_rwlock_wrlock(&lock);
    if (2 * symbol_count >= symbol_room) {
        size_t room = symbol_room ? 2 * symbol_room : 1 << 16;
        struct symbol *table = calloc(room, sizeof *table);
        for (size_t i = 0; i < symbol_room; i++)
            if (symbols[i].host)
                *find_slot(table, room, symbols[i].host) = symbols[i];
        free(symbols);
        symbols = table;
        symbol_room = room;
    }
    struct symbol *slot = find_slot(symbols, symbol_room, host);
    symbol_count += !slot->host;
    *slot = (struct symbol){host, name, NULL, 0, size};
    pthread_rwlock_unlock(&lock);
}

static struct symbol *find_symbol(const void *host)
{
    pthread_rwlock_rdlock(&lock);
    struct symbol *symbol = symbol_room ? find_slot(symbols, symbol_room, host) : NULL;
    pthread_rwlock_unlock(&lock);
    return symbol && symbol->host ? symbol : NULL;
}

static struct kernel *find_kernel(const void *host)
{
    // A thread's last kernels, so that a launch needs no lock.
    static __thread struct { const void *host; struct kernel *kernel; } recent[256];
    unsigned i = ((uintptr_t)host >> 4) % LENGTH(recent);
    if (recent[i].host != host) {
        struct symbol *symbol = find_symbol(host);
        if (!symbol)
            return NULL;
        if (!symbol->kernel)
            symbol->kernel = new_kernel(symbol->name, TENSORFLOW_KERNELS);
        recent[i].host = host;
        recent[i].kernel = symbol->kernel;
    }
    return recent[i].kernel;
}

void **__cudaRegisterFatBinary(void *data) { static void *handle[1]; return handle; }
void __cudaRegisterFatBinaryEnd(void **binary) {}
void __cudaUnregisterFatBinary(void **binary) {}
char __cudaInitModule(void **binary) { return 1; }
void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name, int limit,
                            void *a, void *b, void *c, void *d, int *e)
{
    add_symbol(host, name, 0);
}
void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int is_extern, size_t size,
                       int is_constant, int is_global)
{
    add_symbol(host, name, size);
}
void __cudaRegisterManagedVar(void **binary, void **host, char *device, const char *name, int is_extern,
                              size_t size, int is_constant, int is_global)
{
    add_symbol(host, name, size);
}

// ---- launches ----

// kernel<<<grid, block, shared, stream>>>(...): the compiler's code pushes and pops what is in <<<>>>.
static __thread struct { dim3 grid, block; size_t shared; void *stream; } pushed[16];
static __thread unsigned depth;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream)
{
    unsigned i = depth++ % LENGTH(pushed);
    pushed[i].grid = grid;
    pushed[i].block = block;
    pushed[i].shared = shared;
    pushed[i].stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    unsigned i = --depth % LENGTH(pushed);
    *grid = pushed[i].grid;
    *block = pushed[i].block;
    *shared = pushed[i].shared;
    *(void **)stream = pushed[i].stream;
    return OK;
}

static cudaError_t launch_known(struct kernel *kernel, dim3 grid, dim3 block, cudaStream_t stream)
{
    if (!kernel)
        return result(cudaErrorInvalidDeviceFunction);
    return result(launch(kernel, (unsigned[]){grid.x, grid.y, grid.z, block.x, block.y, block.z}, stream));
}
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream)
{
    API;
    return launch_known(find_kernel(host), grid, block, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                                        size_t shared, cudaStream_t stream)
{
    return cudaLaunchKernel(host, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **arguments)
{
    return cudaLaunchKernel(host, config->gridDim, config->blockDim, arguments, 0, config->stream);
}
cudaError_t cudaGetFuncBySymbol(cudaFunction_t *kernel, const void *host)
{
    API;
    *kernel = (cudaFunction_t)find_kernel(host);
    return *kernel ? OK : result(cudaErrorInvalidDeviceFunction);
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    return cudaGetFuncBySymbol((cudaFunction_t *)kernel, host);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream)
{
    API;
    return launch_known((struct kernel *)kernel, grid, block, stream);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *host)
{
    API;
    *attributes = (struct cudaFuncAttributes){
        .maxThreadsPerBlock = 1024, .numRegs = 32, .ptxVersion = settings.capability,
        .binaryVersion = settings.capability, .maxDynamicSharedSizeBytes = 49152, .preferredShmemCarveout = -1};
    return OK;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads,
                                                                   size_t shared, unsigned flags)
{
    API;
    *blocks = resident_blocks(threads, shared);
    return OK;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads,
                                                          size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0);
}

// ---- variables ----

static struct symbol *find_variable(const void *host)
{
    struct symbol *symbol = find_symbol(host);
    if (symbol && !symbol->address)
        cuMemAlloc(&symbol->address, symbol->size ? symbol->size : 1);
    return symbol;
}
cudaError_t cudaGetSymbolAddress(void **address, const void *host)
{
    API;
    struct symbol *symbol = find_variable(host);
    if (!symbol)
        return result(cudaErrorInvalidSymbol);
    *address = (void *)symbol->address;
    return OK;
}
cudaError_t cudaMemcpyToSymbolAsync(const void *host, const void *from, size_t bytes, size_t offset,
                                    enum cudaMemcpyKind kind, cudaStream_t stream)
{
    API;
    struct symbol *symbol = find_variable(host);
    if (!symbol)
        return result(cudaErrorInvalidSymbol);
    return result(cuMemcpyHtoDAsync(symbol->address + offset, from, bytes, stream));
}

// ---- devices ----

cudaError_t cudaGetDevice(int *device) { API; *device = current_device(); return OK; }
cudaError_t cudaSetDevice(int device)
{
    API;
    if (device >= settings.devices)
        return result(cudaErrorInvalidDevice);
    return result(cuCtxSetCurrent(primary_context(device)));
}
cudaError_t cudaRuntimeGetVersion(int *version) { API; *version = CUDART_VERSION; return OK; }
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *p, int device)
{
    API;
    memset(p, 0, sizeof *p);
    cuDeviceGetName(p->name, sizeof p->name, device);
    cuDeviceGetUuid((CUuuid *)&p->uuid, device);
    p->totalGlobalMem = settings.memory;
    p->major = settings.capability / 10;
    p->minor = settings.capability % 10;
#define ATTRIBUTE(name) device_attribute(CU_DEVICE_ATTRIBUTE_##name, device)
    p->multiProcessorCount = ATTRIBUTE(MULTIPROCESSOR_COUNT);
    p->sharedMemPerBlock = ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK);
    p->sharedMemPerBlockOptin = ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    p->sharedMemPerMultiprocessor = ATTRIBUTE(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    p->reservedSharedMemPerBlock = ATTRIBUTE(RESERVED_SHARED_MEMORY_PER_BLOCK);
    p->regsPerBlock = ATTRIBUTE(MAX_REGISTERS_PER_BLOCK);
    p->regsPerMultiprocessor = ATTRIBUTE(MAX_REGISTERS_PER_MULTIPROCESSOR);
    p->warpSize = ATTRIBUTE(WARP_SIZE);
    p->maxThreadsPerBlock = ATTRIBUTE(MAX_THREADS_PER_BLOCK);
    p->maxThreadsPerMultiProcessor = ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR);
    p->maxBlocksPerMultiProcessor = ATTRIBUTE(MAX_BLOCKS_PER_MULTIPROCESSOR);
    p->maxThreadsDim[0] = ATTRIBUTE(MAX_BLOCK_DIM_X);
    p->maxThreadsDim[1] = ATTRIBUTE(MAX_BLOCK_DIM_Y);
    p->maxThreadsDim[2] = ATTRIBUTE(MAX_BLOCK_DIM_Z);
    p->maxGridSize[0] = ATTRIBUTE(MAX_GRID_DIM_X);
    p->maxGridSize[1] = ATTRIBUTE(MAX_GRID_DIM_Y);
    p->maxGridSize[2] = ATTRIBUTE(MAX_GRID_DIM_Z);
    p->clockRate = ATTRIBUTE(CLOCK_RATE);
    p->memoryClockRate = ATTRIBUTE(MEMORY_CLOCK_RATE);
    p->memoryBusWidth = ATTRIBUTE(GLOBAL_MEMORY_BUS_WIDTH);
    p->l2CacheSize = ATTRIBUTE(L2_CACHE_SIZE);
    p->totalConstMem = ATTRIBUTE(TOTAL_CONSTANT_MEMORY);
    p->memPitch = ATTRIBUTE(MAX_PITCH);
    p->asyncEngineCount = ATTRIBUTE(ASYNC_ENGINE_COUNT);
    p->concurrentKernels = ATTRIBUTE(CONCURRENT_KERNELS);
    p->unifiedAddressing = ATTRIBUTE(UNIFIED_ADDRESSING);
    p->canMapHostMemory = ATTRIBUTE(CAN_MAP_HOST_MEMORY);
    p->cooperativeLaunch = ATTRIBUTE(COOPERATIVE_LAUNCH);
    p->pciBusID = ATTRIBUTE(PCI_BUS_ID);
    return OK;
}

// ---- errors, copies, pointers, and the driver's functions by name ----

cudaError_t cudaGetLastError(void)
{
    API;
    cudaError_t error = last_error;
    last_error = OK;
    return error;
}
cudaError_t cudaPeekAtLastError(void) { API; return last_error; }
const char *cudaGetErrorName(cudaError_t error)
{
    const char *name;
    cuGetErrorName((CUresult)error, &name);
    return name;
}
const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return result(cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return result(cuMemcpy((CUdeviceptr)to, (CUdeviceptr)from, bytes));
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return result(cuMemsetD8Async((CUdeviceptr)to, value, bytes, stream));
}
cudaError_t cudaFree(void *p) { return p ? cuMemFree((CUdeviceptr)p) : OK; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p)
{
    API;
    unsigned type = cudaMemoryTypeUnregistered;
    *attributes = (struct cudaPointerAttributes){.hostPointer = (void *)p};
    if (!cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)p)) {
        cuPointerGetAttribute(&attributes->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)p);
        attributes->devicePointer = (void *)p;
        if (type == cudaMemoryTypeDevice)
            attributes->hostPointer = NULL;
    }
    attributes->type = type;
    return OK;
}
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status)
{
    API;
    int error = cuGetProcAddress(name, function, CUDART_VERSION, flags, NULL);
    if (status)
        *status = error ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
    return OK;
}
