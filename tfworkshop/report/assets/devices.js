// Hosts, devices and layers: who waits for whom, and for what.

const shortName = (device) => device.name.replace("/device:", "");

// A name that tells the host too, where there are several.
function deviceName(profile, device) {
  const name = shortName(device);
  return profile.hosts.length > 1 ? `${device.host} ${name}` : name;
}

function hosts(profile) {
  if (!profile.host_steps.length) return null;
  const rows = profile.host_steps.map((h) => [
    name(h.host),
    num(ms(h.median_ms)),
    num(ms(h.own_ms)),
    num(h.lag === null ? "-" : (h.lag > 0 ? "+" : "") + percent(h.lag, 0)),
    num(percent(h.input_share)),
    num(h.steps),
  ]);
  const heads = ["Host", "#Step, ms", "#Own work, ms", "#Against the median", "#Input", "#Steps"];
  const told =
    "Own work is a step without the exchange, in which a fast host waits for a slow one. In " +
    "synchronous training the slowest host sets the pace.";
  return section("hosts", "Hosts", told, ...table(heads, rows));
}

// --- where a device waits ---

function activities(spent) {
  return Object.fromEntries(Object.entries(spent).map(([key, value]) => ["gap_" + key, value]));
}

function devices(profile) {
  const busy = profile.devices.filter((d) => d.kernels);
  if (!busy.length) return null;
  const worst = busy.reduce((a, b) => (a.idle_ms >= b.idle_ms ? a : b));
  const told =
    `What the host did while ${deviceName(profile, worst)} computed nothing: ` +
    `${ms(worst.idle_ms)} of ${ms(worst.window_ms)} ms.`;
  const gaps = worst.gaps
    .filter((gap) => gap.count)
    .map((gap) => [
      el("td", "", gap.size),
      num(grouped(gap.count)),
      num(ms(gap.total_ms)),
      el("td", "bars wider", stack(activities(gap.host_ms), worst.idle_ms)),
    ]);
  const part = (value) => num(value === null ? "-" : percent(value, 0));
  const rows = busy.map((d) => [
    name(deviceName(profile, d)),
    num(ms(d.window_ms)),
    num(percent(d.window_ms ? d.busy_ms / d.window_ms : 0)),
    part(d.recorded_ms ? d.busy_ms / d.recorded_ms : null),
    num(grouped(d.kernels)),
    num(ms(d.kernel_us)),
    num(ms(d.launch_us)),
    num(d.queue === null ? "-" : d.queue.toFixed(0)),
    part(d.shorter_than_launch),
    num(ms(d.exchange_ms)),
    part(d.exchange_hidden),
    num(ms(d.copy_ms)),
    part(d.copy_hidden),
  ]);
  const heads = [
    ...["Device", "#Window, ms", "#Computing", "#of all", "#Kernels", "#Kernel, µs", "#Launch, µs"],
    ...["#Queue", "#Shorter than launch", "#Exchange, ms", "#hidden", "#Copies, ms", "#hidden"],
  ];
  const meaning =
    "From its first kernel to its last; of all: of the whole recording. Kernel, launch and queue " +
    "are medians; the queue is how many kernels were launched and had not begun when one began. " +
    "Hidden: the share while the device also computed.";
  return section(
    "devices",
    "Where the device waits",
    whole(told),
    stack(activities(worst.waiting_ms), worst.idle_ms),
    legend(activities(worst.waiting_ms), worst.idle_ms),
    el("h3", "", "Its gaps, by size"),
    ...table(["Gap", "#Count", "#Total ms", "~What the host did"], gaps),
    el("h3", "", "Every device that computed"),
    el("p", "soft small", meaning),
    ...table(heads, rows, "narrow"),
  );
}

// --- layers and kinds ---

function layers(profile) {
  if (!profile.layers.length) return null;
  const phases = ["forward", "backward", "optimizer"];
  const sum = (l) => phases.reduce((all, phase) => all + l[phase + "_ms"], 0);
  const total = profile.layers.reduce((all, l) => all + sum(l), 0);
  const most = sum(profile.layers[0]);
  const rows = profile.layers.map((l) => {
    const bar = phases.map((phase) => {
      const part = titled(el("i", phase), `${phase} ${ms(l[phase + "_ms"])} ms`);
      return styled(part, { width: share(l[phase + "_ms"], most) });
    });
    return [
      name(l.name),
      ...phases.map((phase) => num(l[phase + "_ms"] ? ms(l[phase + "_ms"]) : "-")),
      num(percent(sum(l) / total)),
      el("td", "bars", el("div", "phases", ...bar)),
    ];
  });
  const told =
    "Self time of the operations, in ms, by the scope in their names. In the bars: forward dark, " +
    "backward lighter, optimizer lightest.";
  const heads = ["Layer", "#Forward", "#Backward", "#Optimizer", "#Share", ""];
  return section("layers", "Time by layer", told, ...table(heads, rows));
}

function kinds(profile) {
  const all = Object.entries(profile.kinds);
  const total = all.reduce((sum, [, spent]) => sum + spent, 0);
  if (!total) return [];
  const rows = all.map(([kind, spent]) => [
    el("td", "", kind),
    num(ms(spent)),
    num(percent(spent / total)),
    bars(spent / all[0][1]),
  ]);
  return [el("h3", "", "By kind"), ...table(["Kind", "#Total ms", "#Share", ""], rows)];
}

function retraced(profile) {
  if (!profile.retraced.length) return null;
  const rows = profile.retraced.map((f) => [
    name(f.name),
    ...[f.calls, f.traced, f.tracings].map(num),
  ]);
  const told =
    "A tf.function is traced anew for each new shape, type or Python value: it builds its graph " +
    "again, which takes far longer than a call.";
  const heads = ["Function", "#Calls", "#That traced it", "#Tracings in all"];
  return section("retraced", "Traced again", told, ...table(heads, rows));
}
