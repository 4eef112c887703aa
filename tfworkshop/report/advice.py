"""What to try next, by cause, in TensorFlow's words and in JAX's."""

from __future__ import annotations

LOOP = (
    "A loop of steps inside one graph looks like this: read the operations. For a step time, "
    "profile one call a step, as 04_tf_profiler does."
)
TENSORFLOW = {
    "markers": "Put each step, its batch included, into "
    'tf.profiler.experimental.Trace("train", step_num=step, _r=1): see 04_tf_profiler. model.fit '
    "of Keras 3 sets no markers by itself.",
    "input": "Read once, and prepare batches while the device works: 01_line_profiler has the fix, "
    "04_tf_profiler studies an input pipeline (parallel map, prefetch, cache).",
    "compilation": "Profile later steps (--profile-steps in 04_tf_profiler). If it stays, a "
    "tf.function is traced again and again: give it tensors of one shape, see 02_tf_function.",
    "launch": "Launch less often: one graph a step (02_tf_function), fused kernels (03_xla), many "
    "steps in one call (06_optimized), a larger batch.",
    "launch, ahead": "Fewer and larger kernels: XLA fuses them (03_xla), a larger batch.",
    "communication": "Exchange less: a larger batch on every device, 16-bit gradients "
    "(05_reduced_precision). Compare with a profile on one device.",
    "copy": "Copy less, and earlier: prefetch to the device, keep the data there (06_optimized), "
    "ask for no value in every step.",
    "other": "That time is Python, or reading files: 01_line_profiler finds the lines. Then leave "
    "Python out: many steps in one call (06_optimized).",
    "other, eager": "Make the step one graph: 02_tf_function. Then many steps in one call: "
    "06_optimized.",
    "compute": "Half the bits: 05_reduced_precision. Then fused kernels: 03_xla.",
    "compute, 16 bit": "It is in 16 bit already. Fuse kernels (03_xla), take a larger batch, see "
    "the kernels.",
    "compute, CPU": "More cores, a GPU, or less work: look at the operations. 16 bit "
    "(05_reduced_precision) pays only where the CPU has units for it, avx512_bf16 or amx_bf16. XLA "
    "(03_xla): measure both ways.",
}
JAX = {
    "markers": "Put each step, its batch included, into "
    'jax.profiler.StepTraceAnnotation("train", step_num=step).',
    "input": "Prepare the next batches while the device works: a background thread or tf.data with "
    "prefetch, and jax.device_put ahead of the step.",
    "compilation": "Profile later steps. If it stays, a jitted function is compiled again and "
    "again: jax.log_compiles() names it; keep shapes and static arguments the same.",
    "launch": "Dispatch less often: one jax.jit around the whole step, jax.lax.scan over many "
    "steps, a larger batch.",
    "launch, ahead": "Fewer and larger kernels: one jax.jit around the whole step, a larger batch.",
    "communication": "Exchange less: a larger batch on every device, 16-bit gradients. Compare "
    "with a profile on one device.",
    "copy": "Copy less, and earlier: jax.device_put ahead of the step, donate buffers, read back "
    "no value in every step.",
    "other": "That time is Python, or reading files. One jax.jit around the whole step leaves it "
    "out; jax.lax.scan over many steps, too.",
    "other, eager": "Put the whole step into one jax.jit.",
    "compute": "Half the bits: jax.numpy.bfloat16.",
    "compute, 16 bit": "It is in 16 bit already. Take a larger batch, see the kernels.",
    "compute, CPU": "More cores, a GPU, or less work: look at the operations.",
}


def words(framework: str) -> dict[str, str]:
    return JAX if framework == "JAX" else TENSORFLOW
