"""What can be seen of the program: its framework, its functions, what it uses already."""

from __future__ import annotations

import re

from tfworkshop.report import kernels, names
from tfworkshop.report.profile import Profile, Retraced, Setup
from tfworkshop.report.recording import Host

JAX = re.compile(r"^(PjitFunction|jit_|\$jax)")
PROGRAMS = "/host:metadata"  # the plane that holds what XLA compiled


def setup(profile: Profile, hosts: list[Host]) -> Setup:
    """So that the advice does not name what is there already."""
    jax = any(host.has_event(JAX) for host in hosts)
    tensorflow = any(host.has_event(names.EAGER_CALL) for host in hosts)
    compiled = any(
        plane.name == PROGRAMS and any(plane.event_names)
        for host in hosts
        for plane in host.space.planes
    )
    return Setup(
        framework="JAX" if jax and not tensorflow else "TensorFlow",
        xla=jax or compiled or any(op.mode == "XLA" for op in profile.operations),
        sixteen_bit=kernels.mostly_16_bit(profile.kernels, profile.precision),
        cuda_graphs=any(host.has_event(names.GRAPH_LAUNCH) for host in hosts),
    )


def retraced(host: Host) -> list[Retraced]:
    """Each tf.function that was traced while it was recorded, or several times before."""
    found: dict[str, Retraced] = {}
    for line in host.threads:
        rows, counts = line.numbers("tracing_count")
        kinds = line.texts("tf_function_call", rows)
        for name, count, kind in zip(line.names(rows), counts.tolist(), kinds):
            item = found.setdefault(name, Retraced(name, 0, 0, 0))
            item.calls += 1
            item.traced += kind.startswith("traced")
            item.tracings = max(item.tracings, count)
    return [item for item in found.values() if item.traced or item.tracings > 2]
