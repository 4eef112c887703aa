"""What to try next, by cause, in TensorFlow's words and in JAX's; never what is on already."""

from __future__ import annotations

from tfworkshop.report.profile import Setup

# Options in braces, each with what makes it pointless after a bar: {fused kernels|xla}.
TENSORFLOW = {
    "markers": "For a step time put each step, its batch included, into "
    'tf.profiler.experimental.Trace("train", step_num=step, _r=1): see 04_tf_profiler.',
    "input": "Read once, and prepare batches while the device works: 01_line_profiler has the fix, "
    "04_tf_profiler studies an input pipeline (parallel map, prefetch, cache).",
    "compilation": "Profile later steps (--profile-steps in 04_tf_profiler). If it stays, a "
    "tf.function is traced again and again: give it tensors of one shape, see 02_tf_function.",
    "launch": "Launch less often: {one graph a step (02_tf_function)|graph}"
    "{fused kernels (03_xla)|xla}{many steps in one call (06_optimized)|}{a larger batch|}",
    "launch, ahead": "Fewer and larger kernels: {XLA fuses them (03_xla)|xla}{a larger batch|}",
    "communication": "Exchange less: a larger batch on every device, 16-bit gradients "
    "(05_reduced_precision). Compare with a profile on one device, and ranks with each other "
    "(--ranks): time in an exchange is also waiting for the last rank.",
    "copy": "Copy less, and earlier: prefetch to the device, keep the data there (06_optimized), "
    "ask for no value in every step.",
    "other": "That time is Python, or reading files: 01_line_profiler finds the lines. Then leave "
    "Python out: many steps in one call (06_optimized).",
    "other, eager": "Make the step one graph: 02_tf_function. Then many steps in one call: "
    "06_optimized.",
    "compute": "Cheaper arithmetic: {half the bits (05_reduced_precision)|16 bit}"
    "{fused kernels (03_xla)|xla}{a larger batch|}{a look at the kernels|}",
    "compute, CPU": "More cores, a GPU, or less work: look at the operations. 16 bit "
    "(05_reduced_precision) pays only where the CPU has units for it, avx512_bf16 or amx_bf16. XLA "
    "(03_xla): measure both ways.",
    "compute, CPU, XLA": "More cores, a GPU, or less work: look at the operations. XLA is on: "
    "measure without it, too (04_tf_profiler, --xla off). 16 bit (05_reduced_precision) pays only "
    "where the CPU has units for it, avx512_bf16 or amx_bf16.",
}
JAX = {
    "markers": "For a step time put each step, its batch included, into "
    'jax.profiler.StepTraceAnnotation("train", step_num=step).',
    "input": "Prepare the next batches while the device works: a background thread or tf.data with "
    "prefetch, and jax.device_put ahead of the step.",
    "compilation": "Profile later steps. If it stays, a jitted function is compiled again and "
    "again: jax.log_compiles() names it; keep shapes and static arguments the same.",
    "launch": "Dispatch less often: one jax.jit around the whole step, jax.lax.scan over many "
    "steps, a larger batch.",
    "launch, ahead": "Fewer and larger kernels: one jax.jit around the whole step, a larger batch.",
    "communication": "Exchange less: a larger batch on every device, 16-bit gradients. Compare "
    "with a profile on one device: time in an exchange is also waiting for the last rank.",
    "copy": "Copy less, and earlier: jax.device_put ahead of the step, donate buffers, read back "
    "no value in every step.",
    "other": "That time is Python, or reading files. One jax.jit around the whole step leaves it "
    "out; jax.lax.scan over many steps, too.",
    "other, eager": "Put the whole step into one jax.jit.",
    "compute": "Cheaper arithmetic: {half the bits (jax.numpy.bfloat16)|16 bit}{a larger batch|}"
    "{a look at the kernels|}",
    "compute, CPU": "More cores, a GPU, or less work: look at the operations.",
}
STATED = {"xla": " XLA is on already.", "16 bit": " It is in 16 bit already."}


def advise(cause: str, setup: Setup, graph: bool) -> str:
    """What to try against a cause; graph says whether the step is one graph already."""
    table = JAX if setup.framework == "JAX" else TENSORFLOW
    text = table[cause]
    if setup.xla:
        text = table.get(f"{cause}, XLA", text)
    opening, *options = text.split("{")
    if not options:
        return opening
    present = {"graph": graph, "xla": setup.xla, "16 bit": bool(setup.sixteen_bit)}
    chosen, stated = [], ""
    for option in options:
        words, _, pointless_with = option.rstrip("}").partition("|")
        if present.get(pointless_with):
            stated += STATED.get(pointless_with, "")
        else:
            chosen.append(words)
    return f"{opening}{', '.join(chosen)}.{stated}"
