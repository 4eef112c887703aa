"""What a profile says in one sentence, and what to try next."""

from __future__ import annotations

from tools.report.profile import Profile

Verdict = tuple[str, str, str]  # kind, sentence, next

# From these shares of a step on, a cause is worth removing before the arithmetic is looked at:
# those from which TensorFlow's own analysis calls a program "highly" bound by it.
LIMITS = {"input": 0.20, "compilation": 0.20, "launch": 0.15, "communication": 0.20, "other": 0.20}
MANY_CALLS = 20  # a step: one graph needs two or three, its batch included
MARKER = 'tf.profiler.experimental.Trace("train", step_num=step, _r=1)'


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def causes(profile: Profile) -> dict[str, float]:
    """The shares of the average step, by what one would do about them."""
    share = profile.steps.share
    on_device = share("device_compute") > 0
    return {
        "input": share("input"),
        "compilation": share("compilation"),
        # Without a device the host's computing is the training itself, not the launching of it.
        "launch": share("kernel_launch") + (share("host_compute") if on_device else 0),
        "communication": share("device_to_device", "collectives"),
        "other": share("other"),
        "compute": share("device_compute") if on_device else share("host_compute"),
    }


def judge(profile: Profile, markers: int = 0) -> dict[str, str]:
    """kind, sentence and next; markers is how many step markers the timeline has."""
    if not profile.steps.count:
        kind, sentence, following = unknown(markers)
    else:
        shares = causes(profile)
        over = {name: shares[name] for name, limit in LIMITS.items() if shares[name] >= limit}
        worst = max(over, key=lambda name: over[name], default="compute")
        kind, sentence, following = VERDICTS[worst](profile, shares[worst])
    return {"kind": kind, "sentence": sentence, "next": following}


def unknown(markers: int) -> Verdict:
    if markers:
        return (
            "unknown",
            f"Unknown: TensorFlow ties no work to the {markers} step markers, so there is no step "
            "time.",
            "A loop of steps inside one graph looks like this: read the operations. For a step "
            "time, profile one call a step, as 04_tf_profiler does.",
        )
    return (
        "unknown",
        "Unknown: the profile has no step markers, so there is no step time to split.",
        f"Put each step, its batch included, into {MARKER}: see 04_tf_profiler. model.fit of "
        "Keras 3 sets no markers by itself.",
    )


def input_bound(profile: Profile, share: float) -> Verdict:
    return (
        "input-bound",
        f"Input-bound: {percent(share)} of a step is waiting for data.",
        "Read once, and prepare batches while the device works: 01_line_profiler has the fix, "
        "04_tf_profiler studies an input pipeline (parallel map, prefetch, cache).",
    )


def compiling(profile: Profile, share: float) -> Verdict:
    return (
        "compile-bound",
        f"Still compiling: {percent(share)} of a step is compilation, which should happen once.",
        "Profile later steps (--profile-steps in 04_tf_profiler). If it stays, a tf.function is "
        "traced again and again: give it tensors of one shape, see 02_tf_function.",
    )


def launch_bound(profile: Profile, share: float) -> Verdict:
    return (
        "launch-bound",
        f"Launch-bound: for {percent(share)} of a step the host prepares and launches work while "
        "the device waits.",
        "Launch less often: one graph a step (02_tf_function), fused kernels (03_xla), many steps "
        "in one call (06_optimized), a larger batch.",
    )


def communication_bound(profile: Profile, share: float) -> Verdict:
    return (
        "communication-bound",
        f"Communication-bound: {percent(share)} of a step is exchange between devices.",
        "Exchange less: a larger batch on every device, 16-bit gradients (05_reduced_precision). "
        "Compare with a profile on one device.",
    )


def host_bound(profile: Profile, share: float) -> Verdict:
    calls = profile.eager_calls / profile.steps.count
    if calls >= MANY_CALLS:
        return (
            "host-bound",
            f"Host-bound: Python starts {calls:.0f} operations a step one by one, and for "
            f"{percent(share)} of the step none of them runs.",
            "Make the step one graph: 02_tf_function. Then many steps in one call: 06_optimized.",
        )
    return (
        "host-bound",
        f"Host-bound: for {percent(share)} of a step TensorFlow sees nothing running.",
        "That time is Python, or reading files: 01_line_profiler finds the lines. Then leave "
        "Python out: one graph a step (02_tf_function), many steps in one call (06_optimized).",
    )


def compute_bound(profile: Profile, share: float) -> Verdict:
    if profile.steps.share("device_compute") == 0:
        waiting = percent(profile.steps.share("input"), 1)
        return (
            "compute-bound",
            f"Compute-bound: {percent(share)} of a step is computing on the CPU, {waiting} is "
            "waiting for data.",
            "More cores, a GPU, or less work: look at the operations. On a CPU XLA (03_xla) and "
            "16 bit (05_reduced_precision) often cost time instead: measure both.",
        )
    bits = profile.precision.get("bits32_percent")
    in_32 = f", {bits:.0f} % of it in 32 bit" if bits is not None else ""
    half = "Half the bits: 05_reduced_precision. Then fused kernels: 03_xla."
    fuse = "It is in 16 bit already. Fuse kernels (03_xla), take a larger batch, see the kernels."
    return (
        "compute-bound",
        f"Compute-bound: the device computes for {percent(share)} of a step{in_32}.",
        half if bits is None or bits >= 50 else fuse,
    )


VERDICTS = {
    "input": input_bound,
    "compilation": compiling,
    "launch": launch_bound,
    "communication": communication_bound,
    "other": host_bound,
    "compute": compute_bound,
}
