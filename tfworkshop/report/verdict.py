"""What a profile says in one sentence, the evidence for it, and what to try next."""

from __future__ import annotations

from tfworkshop.report import advice
from tfworkshop.report.figures import percent
from tfworkshop.report.gaps import ACTIVITIES, Device
from tfworkshop.report.profile import LABELS, Profile

# From these shares of a step on, a cause is worth removing before the arithmetic is looked at:
# those from which TensorFlow's own analysis calls a program "highly" bound by it.
LIMITS = {"input": 0.20, "compilation": 0.20, "launch": 0.15, "communication": 0.20, "other": 0.20}
IDLE = 0.15  # of a device's time: below that, it is its arithmetic that counts
MANY_CALLS = 20  # a step: one graph needs two or three, its batch included
FULL_QUEUE = 2  # kernels that wait when one begins: the host is ahead of the device
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


def judge(profile: Profile, markers: int = 0) -> dict[str, str]:
    """kind, sentence, evidence and next; markers is how many step markers were recorded."""
    count = profile.steps.count
    again = [item for item in profile.retraced if 2 * item.traced > count > 0]
    if again:
        most = max(again, key=lambda item: item.tracings)
        sentence = f"{most.name} is traced again in {most.traced} of {most.calls} calls."
        return told(profile, "compilation", sentence, split_evidence(profile))
    computed = [device for device in profile.devices if device.window_ms]
    device = max(computed, key=lambda device: device.idle_ms, default=None)
    if device and profile.steps.share("compilation") < LIMITS["compilation"]:
        return by_device(profile, device)
    return by_split(profile) if count else unknown(profile, markers)


def told(
    profile: Profile, cause: str, sentence: str, evidence: str, more: str = ""
) -> dict[str, str]:
    """More tells a cause from others of its kind that want another advice."""
    return {
        "kind": KINDS[cause],
        "sentence": f"{KINDS[cause].capitalize()}: {sentence}",
        "evidence": evidence,
        "next": advice.words(profile.framework)[cause + more],
    }


def arithmetic(profile: Profile) -> tuple[str, str]:
    """The share in 32 bit as a part of a sentence, and which advice on arithmetic fits it."""
    bits = profile.precision.get("bits32_percent")
    if bits is None:
        return "", ""
    return f", {bits:.0f} % of it in 32 bit", ", 16 bit" if bits < 50 else ""


# --- with a device: what it waits for ---


def by_device(profile: Profile, device: Device) -> dict[str, str]:
    """On the device that loses most time, of those that computed."""
    name = device.name.replace("/device:", "")
    if device.idle_share < IDLE:
        in_32, more = arithmetic(profile)
        return told(
            profile,
            "compute",
            f"{name} computes for {percent(device.busy_ms / device.window_ms)} of its time{in_32}.",
            f"{device.kernels:,} kernels in {device.window_ms:.1f} ms, waits {waits_for(device)}.",
            more,
        )
    doing = max(device.waiting_ms, key=lambda key: device.waiting_ms[key])
    cause = CAUSES.get(doing, doing)
    idle = f"{name} computes nothing for {percent(device.idle_share)} of its time"
    sentence = {
        "launch": f"{idle}, while the host launches the next kernels.",
        "input": f"{idle}, while the host waits for the next batch.",
        "communication": f"{idle}, while it exchanges data with other devices.",
        "copy": f"{idle}, while data is copied to it or from it.",
        "other": f"{idle}, and nothing is being launched.",
    }[cause]
    eager = profile.eager_calls / max(1, profile.steps.count) >= MANY_CALLS
    more = ""
    if cause == "launch" and (device.queue or 0) >= FULL_QUEUE and not eager:
        more = ", ahead"
    elif cause == "other" and eager:
        more = ", eager"
    return told(profile, cause, sentence, gap_evidence(device, doing), more)


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
    busy = f"{what} in {percent(device.waiting_ms[doing] / device.idle_ms)} of the idle time"
    python = percent(device.waiting_ms.get("python", 0) / device.idle_ms)
    return f"{gaps}; {busy}" + (f", Python in {python}." if doing != "python" else ".")


# --- without one, or without its events: TensorFlow's split of the step ---


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


def by_split(profile: Profile) -> dict[str, str]:
    shares = causes(profile)
    over = {name: shares[name] for name, limit in LIMITS.items() if shares[name] >= limit}
    worst = max(over, key=lambda name: over[name], default="compute")
    share, calls = percent(shares[worst]), profile.eager_calls / profile.steps.count
    in_32, more = arithmetic(profile) if worst == "compute" else ("", "")
    sentence = {
        "input": f"{share} of a step is waiting for data.",
        "compilation": f"{share} of a step is compiling, which should happen once.",
        "launch": f"for {share} of a step the host prepares and launches work while the device "
        "waits.",
        "communication": f"{share} of a step is exchange between devices.",
        "other": f"for {share} of a step TensorFlow sees nothing running.",
        "compute": f"the device computes for {share} of a step{in_32}.",
    }[worst]
    if worst == "other" and calls >= MANY_CALLS and mostly_graph(profile):
        sentence = (  # saving or reading weights, say
            f"the step is a graph, but beside it Python starts {calls:.0f} operations, and for "
            f"{share} of a step nothing runs."
        )
    elif worst == "other" and calls >= MANY_CALLS:
        more = ", eager"
        sentence = (
            f"Python starts {calls:.0f} operations a step one by one, and for {share} of the step "
            "none of them runs."
        )
    elif worst == "compute" and not profile.steps.share("device_compute"):
        more, waiting = ", CPU", percent(profile.steps.share("input"), 1)
        sentence = f"{share} of a step is computing on the CPU, {waiting} is waiting for data."
    return told(profile, worst, sentence, split_evidence(profile), more)


def mostly_graph(profile: Profile) -> bool:
    graph, eager = (
        sum(op.self_ms for op in profile.operations if op.mode == mode)
        for mode in ("graph", "eager")
    )
    return graph > eager


def split_evidence(profile: Profile) -> str:
    steps = profile.steps
    parts = sorted(steps.split.items(), key=lambda item: -item[1])[:3]
    named = [f"{LABELS[key].lower()} {spent:.1f} ms" for key, spent in parts if spent > 0.05]
    count = f"the mean of {steps.count} steps" if steps.count > 1 else "one step"
    return f"{', '.join(named)} of {steps.average_ms or 0:.1f} ms, {count}."


def unknown(profile: Profile, markers: int) -> dict[str, str]:
    sentence = "the profile has no step markers, so there is no step time to split."
    tries = advice.words(profile.framework)["markers"]
    if markers:
        ties = f"TensorFlow ties no work to the {markers} step markers"
        sentence = f"{ties}, so there is no step time."
        tries = advice.LOOP
    return {"kind": "unknown", "sentence": f"Unknown: {sentence}", "evidence": "", "next": tries}
