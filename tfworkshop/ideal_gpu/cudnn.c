// libcudnn: descriptors keep what they were given; the execution of a plan is one launch, named after
// its operations and their shapes. One engine is offered for every graph, without a workspace.
//
// Follows the cuDNN documentation (docs.nvidia.com/deeplearning/cudnn): handle management, and the
// backend API that cuDNN's open-source frontend, and with it TensorFlow, is built on. functions.txt
// makes a launch of each older function that computes something.
#include "ideal_gpu.h"
#include <cudnn.h>
#include <cudnn_backend.h>

struct cudnnContext { cudaStream_t stream; };

int launch_cudnn(cudnnHandle_t handle, const char *name)
{
    API;
    return launch_library_call(name, NULL, 0, handle->stream);
}
// What an older function creates is only passed on to others of them.
int create_cudnn_object(void **object)
{
    API;
    *object = calloc(1, 1024);
    return OK;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { API; *handle = calloc(1, sizeof **handle); return OK; }
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { API; free(handle); return OK; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t s) { API; handle->stream = s; return OK; }
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *s) { API; *s = handle->stream; return OK; }
size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType part, int *value)
{
    API;
    int version[] = {CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL};
    *value = version[part];
    return OK;
}
const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_SUCCESS";
}
void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "none"); }

// ---- backend descriptors: a list of attributes ----

struct attribute { int name, type; size_t width; int64_t count; void *data; };
struct descriptor { int kind, count; struct attribute attributes[24]; struct kernel *plan; };

static size_t width_of(int type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_FRACTION: return 16;
    default: return 4;
    }
}

static struct attribute *find(struct descriptor *descriptor, int name)
{
    for (int i = 0; descriptor && i < descriptor->count; i++)
        if (descriptor->attributes[i].name == name)
            return &descriptor->attributes[i];
    return NULL;
}

// The descriptor that an attribute holds.
static struct descriptor *inner(struct descriptor *descriptor, int name)
{
    struct attribute *attribute = find(descriptor, name);
    return attribute && attribute->count ? *(struct descriptor **)attribute->data : NULL;
}
static struct kernel *plan_of(struct descriptor *descriptor) { return descriptor ? descriptor->plan : NULL; }

static cudnnStatus_t set(struct descriptor *descriptor, int name, int type, int64_t count, const void *data)
{
    struct attribute *attribute = find(descriptor, name);
    if (!attribute) {
        if (descriptor->count == LENGTH(descriptor->attributes))
            return CUDNN_STATUS_NOT_SUPPORTED;
        attribute = &descriptor->attributes[descriptor->count++];
    }
    free(attribute->data);
    size_t width = width_of(type);
    *attribute = (struct attribute){name, type, width, count, malloc(count * width + 1)};
    memcpy(attribute->data, data, count * width);
    return OK;
}

static void copy_descriptor(struct descriptor *to, struct descriptor *from)
{
    for (int i = 0; i < from->count; i++) {
        struct attribute *a = &from->attributes[i];
        set(to, a->name, a->type, a->count, a->data);
    }
    to->plan = from->plan;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t *result)
{
    API;
    struct descriptor *descriptor = calloc(1, sizeof *descriptor);
    descriptor->kind = kind;
    *result = descriptor;
    return OK;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t given)
{
    API;
    struct descriptor *descriptor = given;
    for (int i = 0; descriptor && i < descriptor->count; i++)
        free(descriptor->attributes[i].data);
    free(descriptor);
    return OK;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *data)
{
    API;
    return set(descriptor, name, type, count, data);
}

// ---- from a graph of operations to a plan ----

static const struct { int kind; const char *name; int image, filter; } operations[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "convolution",
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, "convolution_backward_data",
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, "convolution_backward_filter",
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise", -1, -1},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matmul", -1, -1},
};

static int append_shape(char *text, size_t room, struct descriptor *tensor)
{
    struct attribute *shape = find(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    int length = 0;
    for (int64_t i = 0; shape && i < shape->count && length < (int)room - 24; i++)
        length += snprintf(text + length, room - length, i ? "x%ld" : "_%ld", (long)((int64_t *)shape->data)[i]);
    return length;
}

static struct kernel *name_plan(struct descriptor *graph)
{
    char text[512] = "cudnn";
    int length = strlen(text);
    struct attribute *list = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; list && i < list->count; i++) {
        struct descriptor *operation = ((struct descriptor **)list->data)[i];
        for (unsigned k = 0; k < LENGTH(operations); k++)
            if (operations[k].kind == operation->kind && length < 300) {
                length += snprintf(text + length, sizeof text - length, "_%s", operations[k].name);
                length += append_shape(text + length, 100, inner(operation, operations[k].image));
                length += append_shape(text + length, 100, inner(operation, operations[k].filter));
            }
    }
    return new_kernel(strdup(text), LIBRARY_CALLS);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t given)
{
    API;
    struct descriptor *descriptor = given;
    switch (descriptor->kind) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        descriptor->plan = name_plan(descriptor);
        break;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        descriptor->plan = plan_of(inner(descriptor, CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
        break;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        if (!descriptor->plan)
            descriptor->plan = plan_of(inner(descriptor, CUDNN_ATTR_ENGINECFG_ENGINE));
        break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        descriptor->plan = plan_of(inner(descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
        if (!descriptor->plan)
            descriptor->plan = new_kernel("cudnn", LIBRARY_CALLS);
        break;
    }
    return OK;
}

static cudnnStatus_t answer_number(int64_t number, int64_t wanted, int64_t *count, void *values)
{
    *count = 1;
    if (wanted > 0 && values)
        *(int64_t *)values = number;
    return OK;
}

// Hands the plan's name on to a descriptor that the caller has created.
static cudnnStatus_t answer_plan(struct kernel *plan, int64_t wanted, int64_t *count, void *values)
{
    struct descriptor **result = values;
    *count = 1;
    if (wanted > 0 && result && *result)
        (*result)->plan = plan;
    return OK;
}

static cudnnStatus_t answer_text(const char *text, int64_t wanted, int64_t *count, void *values)
{
    *count = strlen(text) + 1;
    if (wanted >= *count)
        memcpy(values, text, *count);
    return OK;
}

static cudnnStatus_t answer_attribute(struct descriptor *descriptor, int name, int64_t wanted, int64_t *count,
                                      void *values)
{
    struct attribute *attribute = find(descriptor, name);
    if (!attribute) {
        static int said;
        *count = 0;
        return not_implemented("an attribute of cuDNN's backend", &said, CUDNN_STATUS_NOT_SUPPORTED);
    }
    int64_t n = wanted < attribute->count ? wanted : attribute->count;
    *count = attribute->count;
    if (values && attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        for (int64_t i = 0; i < n; i++)
            if (((struct descriptor **)values)[i])
                copy_descriptor(((struct descriptor **)values)[i], ((struct descriptor **)attribute->data)[i]);
    } else if (values) {
        memcpy(values, attribute->data, n * attribute->width);
    }
    return OK;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const given, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count,
                                       void *values)
{
    API;
    struct descriptor *descriptor = (struct descriptor *)given;
    int64_t ignored;
    if (!count)
        count = &ignored;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
        struct descriptor *graph = inner(descriptor, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        return answer_plan(plan_of(graph), wanted, count, values);
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE: return answer_plan(descriptor->plan, wanted, count, values);
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: return answer_number(1, wanted, count, values);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return answer_number(0, wanted, count, values);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: return answer_number(0, wanted, count, values);
    case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION:
        return answer_text(descriptor->plan ? descriptor->plan->name : "", wanted, count, values);
    case CUDNN_ATTR_ENGINE_KNOB_INFO:
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
    case CUDNN_ATTR_ENGINE_LAYOUT_INFO:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
    case CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO:
        *count = 0;
        return OK;
    default: return answer_attribute(descriptor, name, wanted, count, values);
    }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    API;
    static const unsigned one_thread[6] = {1, 1, 1, 1, 1, 1};
    return launch(((struct descriptor *)plan)->plan, one_thread, handle->stream);
}
