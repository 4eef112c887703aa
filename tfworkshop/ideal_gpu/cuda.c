// libcuda, first part: devices, contexts, memory, modules and their kernels.
//
// Follows the "CUDA Driver API" reference (docs.nvidia.com/cuda/cuda-driver-api); the declarations
// are those of cuda.h in the TensorFlow wheel. Device memory is host memory at addresses of its own.
#include "ideal_gpu.h"
#include <dlfcn.h>
#include <sys/mman.h>

#define DRIVER_VERSION 12050
#define FIRST_ADDRESS 0x600000000000ull  // of device memory: far from where Linux puts the host's
#define PAGE (2ull << 20)                // what a real driver rounds allocations to

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// ---- devices ----

CUresult cuInit(unsigned flags) { API; return settings.devices ? OK : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int *version) { API; *version = DRIVER_VERSION; return OK; }
CUresult cuDeviceGetCount(int *devices) { API; *devices = settings.devices; return OK; }
CUresult cuDeviceGet(CUdevice *device, int i)
{
    API;
    *device = i;
    return i < settings.devices ? OK : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    API;
    snprintf(name, size, "ideal GPU");
    return OK;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) { API; *bytes = settings.memory; return OK; }
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    API;
    memcpy(uuid, "ideal GPU no. 0", 16);
    uuid->bytes[14] += device;
    return OK;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }
CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device)
{
    API;
    snprintf(text, size, "0000:%02x:00.0", 1 + device);
    return OK;
}
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    API;
    *device = strtol(text + 5, NULL, 16) - 1;
    return OK;
}
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    API;
    *major = settings.capability / 10;
    *minor = settings.capability % 10;
    return OK;
}
CUresult cuDeviceCanAccessPeer(int *yes, CUdevice a, CUdevice b) { API; *yes = 0; return OK; }
CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute key, CUdevice a, CUdevice b)
{
    API;
    *value = 0;
    return OK;
}

// Sizes as the CUDA programming guide lists them for compute capability 8.0. They decide how
// TensorFlow divides its work into blocks, not how long anything takes.
static const struct { int key, value; } device_attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 166912},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 167936},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1410000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1215000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 41943040},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 108},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1},
};

int device_attribute(int key, int device)
{
    switch (key) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return 1 + device;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return settings.capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return settings.capability % 10;
    }
    for (unsigned i = 0; i < LENGTH(device_attributes); i++)
        if (device_attributes[i].key == key)
            return device_attributes[i].value;
    return 0;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute key, CUdevice device)
{
    API;
    *value = device_attribute(key, device);
    return OK;
}

// ---- contexts: each device has its primary one, and each thread a stack of those it uses ----

struct CUctx_st { int device, users; unsigned flags; size_t limits[CU_LIMIT_MAX]; };
static struct CUctx_st primary_contexts[MOST_DEVICES];
static __thread CUcontext stack[64];
static __thread int depth;

static CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }
int current_device(void) { return current() ? current()->device : 0; }
CUcontext primary_context(int device)
{
    primary_contexts[device].device = device;
    return &primary_contexts[device];
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    API;
    *context = primary_context(device);
    __atomic_fetch_add(&(*context)->users, 1, __ATOMIC_RELAXED);
    return OK;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    API;
    __atomic_fetch_sub(&primary_context(device)->users, 1, __ATOMIC_RELAXED);
    return OK;
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    API;
    primary_context(device)->flags = flags;
    return OK;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    API;
    *flags = primary_context(device)->flags;
    *active = primary_context(device)->users > 0;
    return OK;
}
CUresult cuCtxSetCurrent(CUcontext context)
{
    API;
    if (!depth)
        depth = 1;
    stack[depth - 1] = context;
    return OK;
}
CUresult cuCtxGetCurrent(CUcontext *context) { API; *context = current(); return OK; }
CUresult cuCtxPushCurrent(CUcontext context)
{
    API;
    if (depth == LENGTH(stack))
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    return OK;
}
CUresult cuCtxPopCurrent(CUcontext *context)
{
    API;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return OK;
}
CUresult cuCtxGetDevice(CUdevice *device)
{
    API;
    *device = current_device();
    return current() ? OK : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxGetFlags(unsigned *flags) { API; *flags = current() ? current()->flags : 0; return OK; }
CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    API;
    *id = (uintptr_t)(context ? context : current());
    return OK;
}
CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    API;
    if (current() && limit < CU_LIMIT_MAX)
        current()->limits[limit] = value;
    return OK;
}
CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    API;
    *value = current() && limit < CU_LIMIT_MAX ? current()->limits[limit] : 0;
    return OK;
}
CUresult cuCtxGetStreamPriorityRange(int *lowest, int *highest)
{
    API;
    if (lowest)
        *lowest = 0;
    if (highest)
        *highest = -5;
    return OK;
}
CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) { API; *version = 3020; return OK; }
CUresult cuCtxEnablePeerAccess(CUcontext context, unsigned flags)
{
    API;
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

// ---- errors ----

static const struct { int code; const char *name; } errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
};
CUresult cuGetErrorName(CUresult error, const char **name)
{
    API;
    *name = "CUDA_ERROR_UNKNOWN";
    for (unsigned i = 0; i < LENGTH(errors); i++)
        if (errors[i].code == (int)error)
            *name = errors[i].name;
    return OK;
}
CUresult cuGetErrorString(CUresult error, const char **text) { return cuGetErrorName(error, text); }

// ---- memory: a list of the ranges that are in use ----

enum place { ON_THE_DEVICE, ON_THE_HOST, MANAGED };
struct range { uintptr_t start; size_t size; enum place place; int device; };
static struct range *ranges;
static size_t range_count, range_room;
static size_t used[MOST_DEVICES];
static uintptr_t next_address = FIRST_ADDRESS;  // never used again, so that an old one stays wrong

int is_on_device(uintptr_t address) { return address >= FIRST_ADDRESS && address < next_address; }

static struct range *find_range(uintptr_t address)
{
    for (size_t i = 0; i < range_count; i++)
        if (address >= ranges[i].start && address < ranges[i].start + ranges[i].size)
            return &ranges[i];
    return NULL;
}

static void add_range(uintptr_t start, size_t size, enum place place)
{
    if (range_count == range_room) {
        range_room = 2 * range_room + 64;
        ranges = realloc(ranges, range_room * sizeof *ranges);
    }
    ranges[range_count++] = (struct range){start, size, place, current_device()};
}

static CUresult allocate_on_device(CUdeviceptr *address, size_t bytes)
{
    size_t size = (bytes + PAGE - 1) / PAGE * PAGE;
    int device = current_device();
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (used[device] + size <= settings.memory) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
        void *start = mmap((void *)next_address, size, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (start != MAP_FAILED) {
            add_range((uintptr_t)start, size, ON_THE_DEVICE);
            next_address += size;
            used[device] += size;
            *address = (CUdeviceptr)start;
            result = OK;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult allocate_on_host(void **address, size_t bytes, enum place place)
{
    size_t size = bytes ? bytes : 1;
    if (posix_memalign(address, 4096, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add_range((uintptr_t)*address, size, place);
    pthread_mutex_unlock(&lock);
    return OK;
}

static CUresult release(uintptr_t address)
{
    pthread_mutex_lock(&lock);
    struct range *range = find_range(address);
    if (range) {
        if (range->place == ON_THE_DEVICE) {
            munmap((void *)range->start, range->size);
            used[range->device] -= range->size;
        } else {
            free((void *)range->start);
        }
        *range = ranges[--range_count];
    }
    pthread_mutex_unlock(&lock);
    return OK;
}

CUresult cuMemGetInfo(size_t *left, size_t *total)
{
    API;
    *left = settings.memory - used[current_device()];
    *total = settings.memory;
    return OK;
}
CUresult cuMemAlloc(CUdeviceptr *p, size_t bytes) { API; return allocate_on_device(p, bytes); }
CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream stream)
{
    API;
    return allocate_on_device(p, bytes);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    API;
    return allocate_on_device(p, bytes);
}
CUresult cuMemFree(CUdeviceptr p) { API; return release(p); }
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream) { API; return release(p); }
CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    API;
    return allocate_on_host(p, bytes, ON_THE_HOST);
}
CUresult cuMemAllocHost(void **p, size_t bytes) { return cuMemHostAlloc(p, bytes, 0); }
CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned flags)
{
    API;
    return allocate_on_host((void **)p, bytes, MANAGED);
}
CUresult cuMemFreeHost(void *p) { API; return release((uintptr_t)p); }
CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned flags)
{
    API;
    *device = (CUdeviceptr)host;
    return OK;
}
CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *size, CUdeviceptr p)
{
    API;
    pthread_mutex_lock(&lock);
    struct range *range = find_range(p);
    if (range && start)
        *start = range->start;
    if (range && size)
        *size = range->size;
    pthread_mutex_unlock(&lock);
    return range ? OK : CUDA_ERROR_NOT_FOUND;
}
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    API;
    *pool = (CUmemoryPool)primary_context(device);
    return OK;
}
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice d) { return cuDeviceGetDefaultMemPool(pool, d); }
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute key, void *value)
{
    API;
    *(uint64_t *)value = 0;
    return OK;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute key, CUdeviceptr p)
{
    API;
    pthread_mutex_lock(&lock);
    struct range *found = find_range(p);
    struct range range = found ? *found : (struct range){0};
    pthread_mutex_unlock(&lock);
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;  // memory that CUDA does not know
    int on_host = range.place == ON_THE_HOST;
    switch (key) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = primary_context(range.device); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = p; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(void **)value = range.place == ON_THE_DEVICE ? NULL : (void *)p;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(uint64_t *)value = range.start; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)value = range.place == MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = range.device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(uintptr_t *)value = range.start; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = range.size; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)value = 1; break;
    default: *(unsigned *)value = 0;
    }
    return OK;
}
CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *keys, void **values, CUdeviceptr p)
{
    API;
    for (unsigned i = 0; i < n; i++)
        cuPointerGetAttribute(values[i], keys[i], p);
    return OK;
}

// ---- modules and their kernels: any kernel that is asked for is there ----

struct global { char *name; CUdeviceptr address; size_t size; struct global *next; };
struct module { char *ptx; struct kernel *kernels; struct global *globals; };

struct kernel *new_kernel(const char *name, enum counter counter)
{
    struct kernel *kernel = calloc(1, sizeof *kernel);
    kernel->name = name;
    kernel->counter = counter;
    int *attributes = kernel->attributes;
    attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
    attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = settings.capability;
    attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = settings.capability;
    attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 49152;
    attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
    return kernel;
}

// TensorFlow's own kernels that are made while it runs are named after an operation and its types.
static enum counter origin(const char *name)
{
    if (strstr(name, "_GPU_DT_") || !strcmp(name, "main_kernel"))
        return TENSORFLOW_KERNELS;
    return XLA_KERNELS;
}

static struct kernel *find_kernel(struct module *module, const char *name)
{
    pthread_mutex_lock(&lock);
    struct kernel *kernel = module->kernels;
    while (kernel && strcmp(kernel->name, name))
        kernel = kernel->next;
    if (!kernel) {
        kernel = new_kernel(strdup(name), origin(name));
        kernel->next = module->kernels;
        module->kernels = kernel;
    }
    pthread_mutex_unlock(&lock);
    return kernel;
}

// In PTX, a variable is declared as ".global .align 16 .b8 name[256] = ...".
static size_t size_of_variable(const char *ptx, const char *name)
{
    size_t length = strlen(name);
    for (const char *p = strstr(ptx, name); p; p = strstr(p + length, name)) {
        char next = p[length];
        if (p == ptx || p[-1] != ' ')
            continue;
        if (next == '[')
            return strtoull(p + length + 1, NULL, 10);
        if (next == ';' || next == ' ')
            return 8;
    }
    return 0;
}

static CUresult find_global(struct module *module, const char *name, CUdeviceptr *p, size_t *size)
{
    struct global *global = module->globals;
    while (global && strcmp(global->name, name))
        global = global->next;
    if (!global) {
        size_t bytes = module->ptx ? size_of_variable(module->ptx, name) : 0;
        if (!bytes)
            return CUDA_ERROR_NOT_FOUND;
        global = calloc(1, sizeof *global);
        global->name = strdup(name);
        global->size = bytes;
        global->next = module->globals;
        allocate_on_device(&global->address, bytes);
        module->globals = global;
    }
    if (p)
        *p = global->address;
    if (size)
        *size = global->size;
    return OK;
}

// An image is PTX: our ptxas passes it on as it is. Machine code can only come from another one.
static CUresult load(void *result, const char *image)
{
    if (!strncmp(image, "\177ELF", 4)) {
        static int said;
        not_implemented("machine code (is another ptxas before the ideal GPU's on PATH?)", &said, 0);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    struct module *module = calloc(1, sizeof *module);
    if (!strncmp(image, "//", 2) || !strncmp(image, ".version", 8))
        module->ptx = strdup(image);
    *(struct module **)result = module;
    count(MODULES, 1);
    LOG("module\n");
    return OK;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) { API; return load(module, image); }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, CUjit_option *options,
                            void **values)
{
    API;
    return load(module, image);
}
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { API; return load(module, image); }
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    API;
    *mode = CU_MODULE_LAZY_LOADING;
    return OK;
}
CUresult cuModuleGetFunction(CUfunction *kernel, CUmodule module, const char *name)
{
    API;
    *kernel = (CUfunction)find_kernel((struct module *)module, name);
    return OK;
}
CUresult cuModuleGetGlobal(CUdeviceptr *p, size_t *size, CUmodule module, const char *name)
{
    API;
    return find_global((struct module *)module, name, p, size);
}
CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *a, void **b, unsigned c,
                           CUlibraryOption *d, void **e, unsigned f)
{
    API;
    return load(library, image);
}
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    API;
    *kernel = (CUkernel)find_kernel((struct module *)library, name);
    return OK;
}
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    API;
    *module = (CUmodule)library;
    return OK;
}
CUresult cuLibraryGetGlobal(CUdeviceptr *p, size_t *size, CUlibrary library, const char *name)
{
    API;
    return find_global((struct module *)library, name, p, size);
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    API;
    *function = (CUfunction)kernel;
    return OK;
}
CUresult cuFuncGetName(const char **name, CUfunction kernel)
{
    API;
    *name = ((struct kernel *)kernel)->name;
    return OK;
}
CUresult cuKernelGetName(const char **name, CUkernel kernel) { return cuFuncGetName(name, (CUfunction)kernel); }
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute key, CUfunction kernel)
{
    API;
    *value = ((struct kernel *)kernel)->attributes[key];
    return OK;
}
CUresult cuFuncSetAttribute(CUfunction kernel, CUfunction_attribute key, int value)
{
    API;
    ((struct kernel *)kernel)->attributes[key] = value;
    return OK;
}
CUresult cuKernelGetAttribute(int *value, CUfunction_attribute key, CUkernel kernel, CUdevice device)
{
    return cuFuncGetAttribute(value, key, (CUfunction)kernel);
}
CUresult cuKernelSetAttribute(CUfunction_attribute key, int value, CUkernel kernel, CUdevice device)
{
    return cuFuncSetAttribute((CUfunction)kernel, key, value);
}

// ---- occupancy: as the programming guide computes it, if registers do not limit it ----

int resident_blocks(int threads, size_t shared_memory)
{
    int warps = (threads + 31) / 32;
    int blocks = warps > 0 ? 2048 / (32 * warps) : 1;
    if (shared_memory && blocks > (int)(167936 / (shared_memory + 1024)))
        blocks = 167936 / (shared_memory + 1024);
    return blocks < 32 ? blocks : 32;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction kernel, int threads,
                                                              size_t shared_memory, unsigned flags)
{
    API;
    *blocks = resident_blocks(threads, shared_memory);
    return OK;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction kernel, int threads,
                                                     size_t shared_memory)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared_memory, 0);
}
CUresult cuOccupancyMaxPotentialBlockSize(int *blocks, int *threads, CUfunction kernel,
                                          CUoccupancyB2DSize size, size_t shared_memory, int limit)
{
    API;
    *threads = limit > 0 && limit < 1024 ? limit : 1024;
    *blocks = 108 * resident_blocks(*threads, shared_memory);
    return OK;
}

// ---- finding functions by name: the newest version of each ----

#undef cuGetProcAddress
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    API;
    static void *library;
    Dl_info info;
    if (!library && dladdr((void *)launch, &info))
        library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *function = NULL;
    for (int v = 3; v > 0 && !*function; v--) {
        char versioned[128];
        snprintf(versioned, sizeof versioned, v > 1 ? "%s_v%d" : "%s", name, v);
        *function = dlsym(library, versioned);
    }
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? OK : CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
