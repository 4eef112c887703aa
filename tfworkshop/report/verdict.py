"""What a profile says in one sentence: evidence, what removing the cause can gain, what to try."""

from __future__ import annotations

from tfworkshop.report.advice import advise
from tfworkshop.report.figures import ms, percent
from tfworkshop.report.gaps import ACTIVITIES
from tfworkshop.report.profile import LABELS, Cause, Device, Profile, Steps, Verdict

# From these shares of a step on, a cause is worth removing before the arithmetic is looked at:
# those from which TensorFlow's own analysis calls a program "highly" bound by it.
LIMITS = {"input": 0.20, "compilation": 0.20, "launch": 0.15, "communication": 0.20, "other": 0.20}
IDLE = 0.15  # of a device's time: below that, it is its arithmetic that counts
MANY_CALLS = 20  # a step: one graph needs two or three, its batch included
FULL_QUEUE = 2  # kernels that wait when one begins: the host is ahead of the device
WORTH_NAMING = 0.01  # of a step: smaller causes are left out
# What the host does while a device waits, and what a verdict calls it, where they differ.
CAUSES = {"exchange": "communication", "python": "other", "wait": "other", "nothing": "other"}
KINDS = {
    "input": "input-bound",
    "compilation": "compile-bound",
    "launch": "launch-bound",
    "communication": "communication-bound",
    "copy": "copy-bound",
    "other": "host-bound",
    "compute": "compute-bound",
}
IF_REMOVED = {
    "input": "if nothing waited for data",
    "compilation": "if nothing were compiled",
    "launch": "if launching took no time",
    "communication": "if the exchange took no time",
    "copy": "if nothing were copied",
    "other": "if something always ran",
    "compute": "by removing all that is not computing",
}


def judge(profile: Profile) -> None:
    """Set the verdict and the causes. Without steps they rest on the whole recording."""
    steps = profile.steps
    if not steps.count and profile.window:
        steps = Steps.of([profile.window])
    if not steps.count:
        profile.verdict["sentence"] = "Unknown: nothing that takes time was recorded."
        profile.verdict["next"] = advise("markers", profile.setup, True)
        return
    computed = [device for device in profile.devices if device.window_ms]
    device = max(computed, key=lambda device: device.idle_ms, default=None)
    traced = traced_again(profile)
    if traced or steps.share("compilation") >= LIMITS["compilation"]:
        device = None
    if device:
        profile.causes = device_causes(profile, device)
        cause, sentence, evidence, variant = on_device(profile, device)
    else:
        profile.causes = split_causes(profile, steps)
        cause, sentence, evidence, variant = on_host(profile, steps)
    if traced:
        cause, sentence, variant = "compilation", traced, ""
    profile.causes.sort(key=lambda item: (item.name != cause, -item.gain_ms))
    confidence = confidence_of(profile, cause, device)
    profile.causes[0].confidence = confidence
    next_step = advise(cause + variant, profile.setup, mostly_graph(profile))
    if not profile.steps.count:
        next_step += " " + advise("markers", profile.setup, True)
    profile.verdict = Verdict(
        kind=KINDS[cause],
        sentence=f"{KINDS[cause].capitalize()}: {sentence}",
        evidence=evidence,
        ceiling=ceiling(profile),
        next=next_step,
        confidence=confidence,
    )


def traced_again(profile: Profile) -> str:
    """A sentence if a function is traced in most steps, whatever the split says."""
    count = profile.steps.count
    again = [item for item in profile.retraced if 2 * item.traced > count > 0]
    if not again:
        return ""
    most = max(again, key=lambda item: item.tracings)
    return f"{most.name} is traced again in {most.traced} of {most.calls} calls."


# --- ceilings ---


def make_cause(name: str, gain_ms: float, total_ms: float, confidence: str) -> Cause:
    rest = max(total_ms - gain_ms, 1e-9)
    return Cause(name, KINDS[name], gain_ms, total_ms, total_ms / rest, confidence)


def device_causes(profile: Profile, device: Device) -> list[Cause]:
    """Idle time of a device by what the host did in it, as a part of a step if there are steps."""
    total_ms = profile.steps.average_ms or device.window_ms
    scale = total_ms / device.window_ms
    gains = {"compute": device.busy_ms * scale}
    waiting_ms = device.waiting_ms
    if profile.is_ideal:
        gains = {}
        waiting_ms = host_times(device)
    for activity, spent in waiting_ms.items():
        name = CAUSES.get(activity, activity)
        gains[name] = gains.get(name, 0.0) + spent * scale
    return [
        make_cause(name, gain, total_ms, confidence_of(profile, name, device))
        for name, gain in gains.items()
    ]


def split_causes(profile: Profile, steps: Steps) -> list[Cause]:
    """Parts of the step. Waiting for data gains only where nothing was computed meanwhile."""
    shares, total_ms = cause_shares(steps), steps.average_ms or 0.0
    gains = {name: share * total_ms for name, share in shares.items()}
    gains["input"] = min(gains["input"], steps.input_alone_ms)
    return [
        make_cause(name, gain, total_ms, confidence_of(profile, name, None))
        for name, gain in gains.items()
    ]


def confidence_of(profile: Profile, cause: str, device: Device | None) -> str:
    """Inferred where steps are, or where a device idles and nothing says why."""
    if profile.steps.source in ("inferred", "none"):
        return "inferred"
    if device and cause == "other":
        waiting = device.waiting_ms
        named = waiting.get("python", 0) + waiting.get("wait", 0)
        return "inferred" if waiting.get("nothing", 0) > named else "measured"
    return "measured"


def ceilings(profile: Profile) -> list[Cause]:
    """The verdict's cause, then the second and third if they are worth naming.

    A compute-bound program can gain at most all the rest.
    """
    if not profile.causes:
        return []
    first, *others = profile.causes
    if first.name == "compute":
        rest = first.total_ms - first.gain_ms
        first = make_cause("compute", rest, first.total_ms, first.confidence)
    smallest = WORTH_NAMING * first.total_ms
    named = [item for item in others if item.name != "compute" and item.gain_ms >= smallest]
    return [first, *named[:2]]


def ceiling(profile: Profile) -> str:
    """What removing the verdict's cause gains at most."""
    first = ceilings(profile)[0]
    of = f"of {ms(first.total_ms)} ms a step"
    if not profile.steps.count:
        of = f"of the {ms(first.total_ms)} ms recorded"
    gain = f"at most {ms(first.gain_ms)} {of}, {first.factor:.2f}x"
    return f"{gain}, {IF_REMOVED[first.name]} ({first.confidence})."


# --- with a device: what it waits for ---


def on_device(profile: Profile, device: Device) -> tuple[str, str, str, str]:
    """Cause, sentence, evidence, and which variant of the advice fits."""
    if profile.is_ideal:
        return on_ideal_gpu(profile, device)
    name = device.short_name
    if device.idle_share < IDLE:
        sentence = f"{name} computes for {percent(device.busy_ms / device.window_ms)} of its time"
        sentence += f"{arithmetic(profile)}."
        evidence = (
            f"{device.kernels:,} kernels in {device.window_ms:.1f} ms, waits {waits_for(device)}."
        )
        return "compute", sentence, evidence, ""
    doing = max(device.waiting_ms, key=lambda key: device.waiting_ms[key])
    cause = CAUSES.get(doing, doing)
    idle = f"{name} computes nothing for {percent(device.idle_share)} of its time"
    sentence = {
        "launch": f"{idle}, while the host launches the next kernels.",
        "input": f"{idle}, while the host waits for the next batch.",
        "communication": f"{idle}, while it exchanges data with other devices, or waits for them.",
        "copy": f"{idle}, while data is copied to it or from it.",
        "other": f"{idle}, and nothing is being launched.",
    }[cause]
    eager = starts_many_operations(profile)
    variant = ""
    if cause == "launch" and (device.queue or 0) >= FULL_QUEUE and not eager:
        variant = ", ahead"
    elif cause == "other" and eager:
        variant = ", eager"
    return cause, sentence, gap_evidence(device, doing), variant


def starts_many_operations(profile: Profile) -> bool:
    return profile.eager_calls / max(1, profile.steps.count) >= MANY_CALLS


# --- on the ideal GPU: what the host does ---


def host_times(device: Device) -> dict[str, float]:
    """What the host did, ms by activity. Copies take no time here."""
    return {key: spent for key, spent in device.waiting_ms.items() if key != "copy"}


def on_ideal_gpu(profile: Profile, device: Device) -> tuple[str, str, str, str]:
    """Cause, sentence, evidence, and which variant of the advice fits."""
    spent = host_times(device)
    total = sum(spent.values())
    ranked = sorted(spent, key=lambda key: -spent[key])
    cause = CAUSES.get(ranked[0], ranked[0])
    doing = {
        "launch": "launches kernels",
        "input": "waits for the next batch",
        "communication": "exchanges data with other ranks, or waits for them",
        "other": "runs Python, or waits",
    }[cause]
    steps = max(1, profile.steps.count)
    to_host = sum(copy.per_step for copy in profile.copies if copy.way == "to host")
    copies = "1 copy" if to_host == 1 else f"{to_host:.3g} copies"
    evidence = f"{device.kernels / steps:,.0f} kernels and {copies} to the host a step"
    shares = [f"{ACTIVITIES[key]} {percent(spent[key] / total)}" for key in ranked]
    evidence += f"; the host's time: {', '.join(shares[:2])}."
    variant = ", eager" if cause == "other" and starts_many_operations(profile) else ""
    share = percent(spent[ranked[0]] / total)
    return cause, f"for {share} of its time the host {doing}.", evidence, variant


def arithmetic(profile: Profile) -> str:
    bits = profile.precision.get("bits32_percent")
    if bits is not None:
        return f", {bits:.0f} % of it in 32 bit"
    return ", in 16 bit by its kernels' names" if profile.setup.sixteen_bit else ""


def waits_for(device: Device) -> str:
    """The idle time by what the host did, the largest part first."""
    parts = sorted(device.waiting_ms.items(), key=lambda item: -item[1])
    shares = [(ACTIVITIES[key], spent / device.idle_ms) for key, spent in parts if spent > 0]
    named = [f"{title} {percent(share)}" for title, share in shares[:3] if share >= 0.005]
    return f"{device.idle_ms:.2f} ms ({', '.join(named)})" if named else "never"


def gap_evidence(device: Device, doing: str) -> str:
    """How many gaps, how large, and what the host did in them."""
    most = max(device.gaps, key=lambda item: item.count)
    count = sum(item.count for item in device.gaps)
    gaps = f"{most.count:,} of {count:,} gaps {most.size}"
    what = "the executor busy" if doing == "launch" else ACTIVITIES[doing]
    evidence = (
        f"{gaps}; {what} in {percent(device.waiting_ms[doing] / device.idle_ms)} of the idle time"
    )
    if doing != "python":
        evidence += f", Python in {percent(device.waiting_ms.get('python', 0) / device.idle_ms)}"
    return f"{evidence}."


# --- without one: the split of the step ---


def cause_shares(steps: Steps) -> dict[str, float]:
    """Shares of the average step, by what one would do about them."""
    share = steps.share
    has_device = share("device_compute") > 0
    # Without a device the host's computing is the training itself, not the launching of it.
    return {
        "input": share("input"),
        "compilation": share("compilation"),
        "launch": share("kernel_launch") + (share("host_compute") if has_device else 0),
        "communication": share("device_to_device", "collectives"),
        "other": share("other"),
        "compute": share("device_compute") if has_device else share("host_compute"),
    }


def on_host(profile: Profile, steps: Steps) -> tuple[str, str, str, str]:
    """Cause, sentence, evidence, and which variant of the advice fits."""
    shares = cause_shares(steps)
    over = {name: shares[name] for name, limit in LIMITS.items() if shares[name] >= limit}
    worst = max(over, key=lambda name: over[name], default="compute")
    share, calls = percent(shares[worst]), profile.eager_calls / max(1, profile.steps.count)
    unit = "a step" if profile.steps.count else "the recording"
    variant = ""
    sentence = {
        "input": f"{share} of {unit} is waiting for data.",
        "compilation": f"{share} of {unit} is compiling, which should happen once.",
        "launch": f"for {share} of {unit} the host prepares and launches work while the device "
        "waits.",
        "communication": f"{share} of {unit} is exchange between devices, or waiting for them.",
        "other": f"for {share} of {unit} TensorFlow sees nothing running.",
        "compute": f"the device computes for {share} of {unit}{arithmetic(profile)}.",
    }[worst]
    if worst == "other" and profile.setup.framework == "JAX":
        sentence = f"for {share} of {unit} nothing that JAX records is running."
    if worst == "other" and calls >= MANY_CALLS and mostly_graph(profile):
        sentence = (  # saving or reading weights, say
            f"the step is a graph, but beside it Python starts {calls:.0f} operations, and for "
            f"{share} of {unit} nothing runs."
        )
    elif worst == "other" and calls >= MANY_CALLS:
        variant = ", eager"
        where = unit if profile.steps.count else f"in {unit}"
        sentence = (
            f"Python starts {calls:.0f} operations {where} one by one, and for {share} of the time "
            "none of them runs."
        )
    elif worst == "compute" and not steps.share("device_compute"):
        waiting = percent(steps.share("input"), 1)
        sentence = f"{share} of {unit} is computing on the CPU, {waiting} is waiting for data."
        variant = ", CPU"
    return worst, sentence, split_evidence(profile, steps), variant


def mostly_graph(profile: Profile) -> bool:
    graph, eager = (
        sum(op.self_ms for op in profile.operations if op.mode in modes)
        for modes in (("graph", "XLA"), ("eager",))
    )
    return graph > eager


def split_evidence(profile: Profile, steps: Steps) -> str:
    parts = sorted(steps.split.items(), key=lambda item: -item[1])[:3]
    named = [f"{LABELS[key].lower()} {spent:.1f} ms" for key, spent in parts if spent > 0.05]
    count = f"the mean of {steps.count} steps" if steps.count > 1 else "one step"
    if not profile.steps.count:
        count = "the whole recording"
    return f"{', '.join(named)} of {steps.average_ms or 0:.1f} ms, {count}."
