"""What a profile says in one sentence, and what to try next."""

from __future__ import annotations

from tools.profile import Profile

# From these shares of a step on, a cause is worth removing before the arithmetic is looked at. They
# are the ones from which TensorFlow's own analysis calls a program "highly" bound by it.
LIMITS = {"input": 0.20, "compilation": 0.20, "launch": 0.15, "communication": 0.20, "other": 0.20}
MARKERS = 'tf.profiler.experimental.Trace("train", step_num=step, _r=1)'


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
        return unknown(markers)
    shares = causes(profile)
    over = {name: shares[name] for name, limit in LIMITS.items() if shares[name] >= limit}
    worst = max(over, key=lambda name: over[name], default="compute")
    return VERDICTS[worst](profile, shares[worst])


def verdict(kind: str, sentence: str, following: str) -> dict[str, str]:
    return {"kind": kind, "sentence": sentence, "next": following}


def unknown(markers: int) -> dict[str, str]:
    if markers:
        return verdict(
            "unknown",
            f"Unknown: {markers} step markers are there, but TensorFlow ties no work to them, so "
            "there is no step time. Steps that run inside one graph (a loop in a tf.function) look "
            "like this.",
            "Read the operations below. For a step time, profile one call a step, as in "
            "04_tf_profiler.",
        )
    return verdict(
        "unknown",
        "Unknown: the profile has no step markers, so there is no step time to split.",
        f"Put each step, its batch included, in {MARKERS}: see 04_tf_profiler.",
    )


def input_bound(profile: Profile, share: float) -> dict[str, str]:
    return verdict(
        "input-bound",
        f"Input-bound: {share:.0%} of a step is waiting for data.",
        "Read once and prepare batches while the device works: 01_line_profiler has the fix, "
        "04_tf_profiler the study of an input pipeline (parallel map, prefetch, cache).",
    )


def compiling(profile: Profile, share: float) -> dict[str, str]:
    return verdict(
        "compile-bound",
        f"Compiling: {share:.0%} of a step is compilation, which should happen once.",
        "Profile later steps (--profile-steps in 04_tf_profiler). If it stays, a tf.function is "
        "traced again and again: give it tensors of one shape, see 02_tf_function.",
    )


def launch_bound(profile: Profile, share: float) -> dict[str, str]:
    return verdict(
        "launch-bound",
        f"Launch-bound: for {share:.0%} of a step the host prepares and launches work, and the "
        "device waits.",
        "Launch less often: one graph a step (02_tf_function), fewer and larger kernels (03_xla), "
        "many steps in one call (06_optimized), a larger batch.",
    )


def communication_bound(profile: Profile, share: float) -> dict[str, str]:
    return verdict(
        "communication-bound",
        f"Communication-bound: {share:.0%} of a step is exchange between devices.",
        "Exchange less often or less: a larger batch on every device, 16-bit gradients "
        "(05_reduced_precision); compare with one device.",
    )


def host_bound(profile: Profile, share: float) -> dict[str, str]:
    return verdict(
        "host-bound",
        f"Host-bound: for {share:.0%} of a step nothing runs that TensorFlow knows of. That is "
        "Python: code between the operations, or reading files.",
        "Find the lines with 01_line_profiler. If it is many small operations, make them one graph "
        "(02_tf_function), then many steps in one call (06_optimized).",
    )


def compute_bound(profile: Profile, share: float) -> dict[str, str]:
    if profile.steps.share("device_compute") == 0:
        return verdict(
            "compute-bound",
            f"Compute-bound on the CPU: {share:.0%} of a step is arithmetic on the host, "
            f"{profile.steps.share('input'):.1%} is waiting for data.",
            "On a CPU more cores help, and leaving out work: see the operations below. XLA "
            "(03_xla) and 16 bit (05_reduced_precision) often cost time there: measure both.",
        )
    bits = profile.precision.get("bits32_percent")
    in_32 = f", {bits:.0f} % of it in 32 bit" if bits is not None else ""
    return verdict(
        "compute-bound",
        f"Compute-bound: the device computes for {share:.0%} of a step{in_32}.",
        "Half the bits: 05_reduced_precision, then fused kernels: 03_xla."
        if bits is None or bits >= 50
        else "Fewer, fused kernels (03_xla); then the largest kernels below, and a larger batch.",
    )


VERDICTS = {
    "input": input_bound,
    "compilation": compiling,
    "launch": launch_bound,
    "communication": communication_bound,
    "other": host_bound,
    "compute": compute_bound,
}
