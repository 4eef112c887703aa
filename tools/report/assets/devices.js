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
  return el(
    "section",
    "hosts",
    el("h2", "", "Hosts"),
    el("p", "soft", told),
    ...table(heads, rows),
  );
}

// --- where a device waits ---

function activities(spent) {
  return Object.fromEntries(Object.entries(spent).map(([key, value]) => ["gap_" + key, value]));
}

function devices(profile) {
  const busy = profile.devices.filter((d) => d.kernels);
  if (!busy.length) return null;
  const worst = busy.reduce((a, b) => (a.idle_ms >= b.idle_ms ? a : b));
  const section = el("section", "devices", el("h2", "", "Where the device waits"));
  const told =
    `What the host did while ${deviceName(profile, worst)} computed nothing: ` +
    `${ms(worst.idle_ms)} of ${ms(worst.window_ms)} ms.`;
  section.append(
    el("p", "soft", whole(told)),
    stack(activities(worst.waiting_ms), worst.idle_ms),
    legend(activities(worst.waiting_ms), worst.idle_ms),
  );
  const gaps = worst.gaps
    .filter((gap) => gap.count)
    .map((gap) => [
      el("td", "", gap.size),
      num(gap.count.toLocaleString("en-US")),
      num(ms(gap.total_ms)),
      el("td", "bars wider", stack(activities(gap.host_ms), worst.idle_ms)),
    ]);
  section.append(
    el("h3", "", "Its gaps, by size"),
    ...table(["Gap", "#Count", "#Total ms", "~What the host did"], gaps),
  );
  const share = (value) => num(value === null ? "-" : percent(value, 0));
  const rows = busy.map((d) => [
    name(deviceName(profile, d)),
    num(ms(d.window_ms)),
    num(percent(d.window_ms ? d.busy_ms / d.window_ms : 0)),
    share(d.recorded_ms ? d.busy_ms / d.recorded_ms : null),
    num(d.kernels.toLocaleString("en-US")),
    num(ms(d.kernel_us)),
    num(ms(d.launch_us)),
    num(d.queue === null ? "-" : d.queue.toFixed(0)),
    share(d.shorter_than_launch),
    num(ms(d.exchange_ms)),
    share(d.exchange_hidden),
    num(ms(d.copy_ms)),
    share(d.copy_hidden),
  ]);
  const heads = [
    ...["Device", "#Window, ms", "#Computing", "#of all", "#Kernels", "#Kernel, µs", "#Launch, µs"],
    ...["#Queue", "#Shorter than launch", "#Exchange, ms", "#hidden", "#Copies, ms", "#hidden"],
  ];
  section.append(
    el("h3", "", "Every device that computed"),
    el(
      "p",
      "soft small",
      "From its first kernel to its last; of all: of the whole recording. Kernel, launch and queue are medians; the queue is how many kernels " +
        "were launched and had not begun when one began. Hidden: the share while the device also computed.",
    ),
    ...table(heads, rows, "narrow"),
  );
  return section;
}

// --- layers and kinds ---

function layers(profile) {
  if (!profile.layers.length) return null;
  const sum = (l) => l.forward_ms + l.backward_ms + l.optimizer_ms;
  const total = profile.layers.reduce((all, l) => all + sum(l), 0);
  const most = sum(profile.layers[0]);
  const rows = profile.layers.map((l) => {
    const bar = el("div", "phases");
    for (const phase of ["forward", "backward", "optimizer"]) {
      const part = titled(el("i", phase), `${phase} ${ms(l[phase + "_ms"])} ms`);
      part.style.width = (100 * l[phase + "_ms"]) / most + "%";
      bar.append(part);
    }
    const cell = (value) => num(value ? ms(value) : "-");
    return [
      name(l.name),
      cell(l.forward_ms),
      cell(l.backward_ms),
      cell(l.optimizer_ms),
      num(percent(sum(l) / total)),
      el("td", "bars", bar),
    ];
  });
  return el(
    "section",
    "layers",
    el("h2", "", "Time by layer"),
    el(
      "p",
      "soft",
      "Self time of the operations, in ms, by the scope in their names. In the bars: forward dark, backward lighter, optimizer lightest.",
    ),
    ...table(["Layer", "#Forward", "#Backward", "#Optimizer", "#Share", ""], rows),
  );
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
  const rows = profile.retraced.map((f) => [name(f.name), num(f.calls), num(f.traced), num(f.tracings)]);
  return el(
    "section",
    "retraced",
    el("h2", "", "Traced again"),
    el(
      "p",
      "soft",
      "A tf.function is traced anew for each new shape, type or Python value: it builds its graph again, which takes far longer than a call.",
    ),
    ...table(["Function", "#Calls", "#That traced it", "#Tracings in all"], rows),
  );
}
