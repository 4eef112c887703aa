// libcublas and libcublasLt: a multiplication is one launch, named after the function and its shape.
//
// Follows the cuBLAS documentation (docs.nvidia.com/cuda/cublas). functions.txt makes a launch of
// each function that is not here.
#include "ideal_gpu.h"
#include <cublas_v2.h>
#include <cublasLt.h>

struct cublasContext { cudaStream_t stream; int pointer_mode, math_mode, atomics_mode, multiprocessors; };

int launch_cublas(cublasHandle_t handle, const char *name)
{
    API;
    return launch_library_call(name, NULL, 0, handle->stream);
}
#define LAUNCH(...)                                                                                \
    API;                                                                                           \
    int64_t shape[] = {__VA_ARGS__};                                                               \
    return launch_library_call(__func__, shape, LENGTH(shape), handle->stream)

cublasStatus_t cublasCreate(cublasHandle_t *handle) { API; *handle = calloc(1, sizeof **handle); return OK; }
cublasStatus_t cublasDestroy(cublasHandle_t handle) { API; free(handle); return OK; }
cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version) { API; *version = CUBLAS_VERSION; return OK; }
cublasStatus_t cublasGetProperty(libraryPropertyType part, int *value)
{
    API;
    int version[] = {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH};
    *value = version[part];
    return OK;
}
const char *cublasGetStatusName(cublasStatus_t status)
{
    return status ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_SUCCESS";
}
const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

#define SETTING(get, set, type, field)                                                             \
    cublasStatus_t get(cublasHandle_t handle, type *value) { API; *value = handle->field; return OK; } \
    cublasStatus_t set(cublasHandle_t handle, type value) { API; handle->field = value; return OK; }
SETTING(cublasGetStream, cublasSetStream, cudaStream_t, stream)
SETTING(cublasGetPointerMode, cublasSetPointerMode, cublasPointerMode_t, pointer_mode)
SETTING(cublasGetMathMode, cublasSetMathMode, cublasMath_t, math_mode)
SETTING(cublasGetAtomicsMode, cublasSetAtomicsMode, cublasAtomicsMode_t, atomics_mode)
SETTING(cublasGetSmCountTarget, cublasSetSmCountTarget, int, multiprocessors)

// The multiplications that TensorFlow uses most get their shape into their name.
cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                           int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                           const float *beta, float *C, int ldc)
{
    LAUNCH(m, n, k);
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                            int k, const void *alpha, const void *A, cudaDataType a, int lda, const void *B,
                            cudaDataType b, int ldb, const void *beta, void *C, cudaDataType c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    LAUNCH(m, n, k);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                          int m, int n, int k, const void *alpha, const void *A,
                                          cudaDataType a, int lda, long long stride_a, const void *B,
                                          cudaDataType b, int ldb, long long stride_b, const void *beta,
                                          void *C, cudaDataType c, int ldc, long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    LAUNCH(m, n, k, batch);
}

// ---- cublasLt: a descriptor keeps its attributes by their numbers ----

struct descriptor { uint64_t values[128][2]; };

static cublasStatus_t set_attribute(void *descriptor, int key, const void *value, size_t bytes)
{
    if (key < 0 || key >= 128 || bytes > 16)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memcpy(((struct descriptor *)descriptor)->values[key], value, bytes);
    return OK;
}
static cublasStatus_t get_attribute(void *descriptor, int key, void *value, size_t bytes, size_t *written)
{
    if (key < 0 || key >= 128 || bytes > 16)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    memcpy(value, ((struct descriptor *)descriptor)->values[key], bytes);
    if (written)
        *written = bytes;
    return OK;
}
static void *new_descriptor(void) { return calloc(1, sizeof(struct descriptor)); }

#define DESCRIPTOR(name, type, key)                                                                \
    cublasStatus_t name##Destroy(type d) { API; free(d); return OK; }                              \
    cublasStatus_t name##SetAttribute(type d, key k, const void *value, size_t bytes)              \
    {                                                                                              \
        API;                                                                                       \
        return set_attribute(d, k, value, bytes);                                                  \
    }                                                                                              \
    cublasStatus_t name##GetAttribute(type d, key k, void *value, size_t bytes, size_t *written)   \
    {                                                                                              \
        API;                                                                                       \
        return get_attribute(d, k, value, bytes, written);                                         \
    }
DESCRIPTOR(cublasLtMatrixLayout, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t)
DESCRIPTOR(cublasLtMatmulDesc, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t)
DESCRIPTOR(cublasLtMatmulPreference, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t)

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) { API; *handle = new_descriptor(); return OK; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { API; free(handle); return OK; }
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }
const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }
const char *cublasLtGetStatusName(cublasStatus_t status) { return cublasGetStatusName(status); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    API;
    *preference = new_descriptor();
    return OK;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride)
{
    API;
    int order = CUBLASLT_ORDER_COL;
    int batch = 1;
    *layout = new_descriptor();
    set_attribute(*layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type);
    set_attribute(*layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
    set_attribute(*layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows);
    set_attribute(*layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
    set_attribute(*layout, CUBLASLT_MATRIX_LAYOUT_LD, &stride, sizeof stride);
    set_attribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    return OK;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    API;
    int epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *d = new_descriptor();
    set_attribute(*d, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute, sizeof compute);
    set_attribute(*d, CUBLASLT_MATMUL_DESC_SCALE_TYPE, &scale, sizeof scale);
    set_attribute(*d, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    return OK;
}
// One algorithm is offered, without a workspace.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n)
{
    API;
    *n = wanted > 0;
    if (*n) {
        memset(results, 0, sizeof *results);
        results->algo.data[0] = 1;
        results->wavesCount = 1;
    }
    return OK;
}
static int64_t layout_value(cublasLtMatrixLayout_t layout, int key)
{
    return ((struct descriptor *)layout)->values[key][0];
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t out,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                              cudaStream_t stream)
{
    API;
    int transposed = ((struct descriptor *)d)->values[CUBLASLT_MATMUL_DESC_TRANSA][0] != 0;
    int inner = transposed ? CUBLASLT_MATRIX_LAYOUT_ROWS : CUBLASLT_MATRIX_LAYOUT_COLS;
    int64_t shape[] = {layout_value(out, CUBLASLT_MATRIX_LAYOUT_ROWS),
                       layout_value(out, CUBLASLT_MATRIX_LAYOUT_COLS), layout_value(a, inner),
                       layout_value(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)};
    return launch_library_call(__func__, shape, LENGTH(shape), stream);
}
