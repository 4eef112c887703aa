"""The ideal GPU: a stand-in for CUDA whose kernels take no time. README.md says how it works."""
