// libnvidia-ml: TensorFlow 2.21 looks for devices only if this library can be initialized.
//
// Follows the NVML reference (docs.nvidia.com/deploy/nvml-api).
#include "ideal_gpu.h"
#include <nvml.h>

nvmlReturn_t nvmlDeviceGetCount(unsigned *devices) { API; *devices = settings.devices; return OK; }
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned i, nvmlDevice_t *device)
{
    API;
    *device = (nvmlDevice_t)primary_context(i);
    return OK;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device)
{
    CUdevice i;
    cuDeviceGetByPCIBusId(&i, text);
    return nvmlDeviceGetHandleByIndex(i, device);
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    API;
    snprintf(text, size, "555.42.06");  // the first driver with CUDA 12.5
    return OK;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *on)
{
    API;
    *on = NVML_FEATURE_DISABLED;
    return OK;
}
const char *nvmlErrorString(nvmlReturn_t error) { return error ? "NVML_ERROR_NOT_SUPPORTED" : "NVML_SUCCESS"; }

// As of a PCI Express 4.0 slot: TensorFlow only estimates with it.
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    API;
    *generation = 4;
    return OK;
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *lanes) { API; *lanes = 16; return OK; }
