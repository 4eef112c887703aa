; XLA links its kernels with a library of mathematical functions. This one has none: what a kernel
; calls stays a name in the PTX. LLVM reads its text form as well as the binary one.
target datalayout = "e-i64:64-i128:128-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-gpulibs"
