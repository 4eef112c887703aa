"""What the names of threads, events, operations and kernels mean.

Names are fallible: whatever fits no pattern stays "other".
"""

from __future__ import annotations

import re
from functools import cache

# --- planes and lines ---

DEVICE = re.compile(r"^/device:(?!CPU)\w+:\d+")
IDEAL_GPU = "ideal GPU"  # the name that it reports: docs/IDEAL_GPU.md
DEVICE_LINE = re.compile(r"^XLA Ops$|Compute")  # of a device without streams
PROGRAM_THREAD = re.compile(r"^(py|main)")
INPUT_THREAD = re.compile(r"^tf_data")
FETCHING_THREAD = re.compile(r"^tf_data.*get_next")
LAUNCHING_THREAD = re.compile(r"^tf_(gpu|Compute|inter)")

# --- events ---

COPY = re.compile(r"^(Mem(cpy|set)|Copy(Host|Device)|hipMemcpy)", re.I)
TO_DEVICE = re.compile(r"^(MEMCPYH(to|2)D|CopyHostToDevice)", re.I)
TO_HOST = re.compile(r"^(MEMCPYD(to|2)H|CopyDeviceToHost)", re.I)
DEVICE_TO_DEVICE = re.compile(r"^(MEMCPY[DP](to|2)[DP])", re.I)
EXCHANGE = re.compile(r"nccl|rccl|all-?reduce|all-?gather|reduce-?scatter|collective|horovod", re.I)
WAIT = re.compile(r"Synchronize|BlockHost|BlockUntil|Await|\bWait|WaitFor|TensorHandleResolve")
INPUT = re.compile(r"^Iterator::|Iterator\w*GetNext|^PrefetchConsume")
COMPILING = re.compile(r"^(Xla|PjRt|Tfrt\w*|\w*Client::)\w*Compil|BackendCompile|backend_compile")
GRAPH_LAUNCH = re.compile(r"^(cu|cuda|hip)GraphLaunch|^(Cuda|Hip)GraphExec")
EAGER_CALL = re.compile(r"^EagerLocalExecute: ")
EAGER_OPERATION = re.compile(r"^EagerLocalExecute: (?!__inference|Iterator|Optional)")
EXECUTOR = re.compile(r"^ExecutorState::Process")
MEMORY = re.compile(r"^Memory(Allocation|Deallocation)$")
ALLOCATION = re.compile(r"^MemoryAllocation$")
JIT_CALL = re.compile(r"^PjitFunction\(")
XLA = re.compile(r"^(Xla(Launch|Run|Module|Compil)|_Xla)|fusion|^Thunk|^PjRt|^Pjit")
# Containers that say nothing about whether work was done in them.
NO_WORK = re.compile(
    r"^(Eager(Local|Kernel)?Execute|FunctionRun|TraceContext|ExecutorDoneCallback|\$)"
)
# What TensorFlow's and JAX's runtimes do on the program's own thread: not Python.
RUNTIME = re.compile(
    r"^(Eager|TFE_|FunctionRun|Executor|KernelAndDevice|Kernel|cu[A-Z]|cuda|hip|PjRt|Pjit|Execute"
    r"|Thunk|Xla|XLA|Stream|Mem(cpy|set)|void |_?Send|_?Recv|ParseArguments|CommonPjRt)"
)

# --- operations ---

OPERATION_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
OPERATION_TYPE = re.compile(r"[A-Z_][a-zA-Z0-9_]*")
DATASET = "Dataset"
TRAILING_NUMBER = re.compile(r"[._]\d+$")


@cache
def parse_operation(full_name: str) -> tuple[str, str] | None:
    """Name and type of a TensorFlow operation or a tf.data iterator; None for anything else."""
    name, colon, kind = full_name.partition(":")
    if not colon:
        return None
    if name == "Iterator":
        return full_name.partition("#")[0], DATASET
    if OPERATION_NAME.fullmatch(name) and OPERATION_TYPE.fullmatch(kind):
        return name, kind
    if OPERATION_NAME.fullmatch(name) and not kind:
        return name, TRAILING_NUMBER.sub("", name.rpartition("/")[2])
    return None


@cache
def parse_annotation(text: str) -> tuple[str, str]:
    """Name and type of the operation that a kernel's annotation names."""
    name = text.partition("#")[0].rstrip(":") or text
    parsed = parse_operation(name)
    if parsed:
        return parsed
    name = name.partition(":")[0]
    return name, TRAILING_NUMBER.sub("", name.rpartition("/")[2])


# --- kernels ---

AMD = re.compile(r"^Cijk_|\.kd$|__amd_|rocm|miopen", re.I)
MATRIX_KERNEL = re.compile(
    r"gemm|cutlass|cudnn|xmma|tensorop|winograd|fprop|dgrad|wgrad|\bCijk_|miopen|_dot_|flash"
    r"|conv(olution|\dd|_)",
    re.I,
)
# 16-bit arithmetic in names of cuBLAS, cuDNN, CUTLASS, Triton and rocBLAS.
SIXTEEN_BIT = re.compile(
    r"bf16|(?<![a-z])f16|fp16|half|hgemm|[hs]884|[hs]1688|[hs]16816|bfloat16"
    r"|Cijk_\w*?_(HH|BB|HS|BS|HB|BH)[SHB]?_"
)
TENSOR_CORE = re.compile(
    r"[ihs]884|[ihs]1688|16816|hmma|xmma|tensorop|wmma|s8816|gmma|sm(80|86|89|90|100)_\w*gemm"
)
# Names in which the compiler chose the instructions: nobody can tell from outside.
GENERATED = re.compile(r"^(triton|loop_|input_|\w*fusion|gemm_fusion|__cudnn)", re.I)
ELIGIBLE = re.compile(
    r"Conv[23]D(Backprop(Filter|Input)(V2)?)?$|DepthwiseConv2dNative\w*$|BatchMatMul|(^|/)MatMul$"
    r"|FusedMatMul$|CudnnRNN|XlaDot(V2)?$"
)
KINDS = (  # of a kernel: the first that fits its name or its operation's
    ("communication", r"nccl|rccl|all-?reduce|all-?gather|reduce-?scatter"),
    ("convolution", r"conv(olution|\dd|_|-)|[48]cudnn|fprop|dgrad|wgrad|winograd|miopen|implicit_"),
    ("matrix multiply", r"gemm|matmul|cutlass|cublas|\bcijk_|einsum|\bdot\b|attention"),
    ("random numbers", r"philox|random|\brng"),
    ("copy and layout", r"memcpy|memset|transpose|swapdim|^copy|concat|gather|slice|pad"),
    ("reduction", r"reduc|softmax|norm|\bsum\b|mean|pool|segment"),
    ("elementwise", r"eigen|elementwise|fusion|\bbinary|unary|cast|add|mul|relu|select|assign"),
)


@cache
def short_kernel_name(kernel: str) -> str:
    """A C++ kernel's name without namespaces, arguments and Eigen's wrapping."""
    name = re.sub(r"\b(?:\w+::)+", "", kernel.replace("(anonymous namespace)::", ""))
    name = re.sub(r"^void ", "", name).replace(" const", "").replace("> >", ">>")
    name = re.sub(r"(?<=.)\([^()]*\)$", "", name)
    name = re.sub(r"TensorMap<Tensor<(\w+), [^<>]*>, \d+, MakePointer>", r"\1", name)
    wrapped = r"EigenMetaKernel<TensorEvaluator<TensorAssignOp<\w+, (.*)>, GpuDevice>, \w+>"
    found = re.fullmatch(wrapped, name)
    return f"Eigen {found[1]}" if found else name


def kind_of_kernel(kernel: str, operation: str) -> str:
    for text in (kernel, operation.rpartition("/")[2]):
        for kind, pattern in KINDS[:-1]:
            if re.search(pattern, text, re.I):
                return kind
    return "elementwise" if re.search(KINDS[-1][1], kernel + operation, re.I) else "other"
