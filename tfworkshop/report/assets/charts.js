// What the scripts share, and the charts. Every name from a profile becomes text, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const TOP = 10;

function el(tag, looks, ...children) {
  const node = document.createElement(tag);
  if (looks) node.className = looks;
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function section(looks, title, told, ...children) {
  const lead = told === null ? null : el("p", "soft", told);
  return el("section", looks, el("h2", "", title), lead, ...children);
}

function titled(node, title) {
  node.title = title;
  return node;
}

function styled(node, style) {
  Object.assign(node.style, style);
  return node;
}

function ms(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(size >= 10 ? 1 : 2);
}

const percent = (share, digits = 1) => (100 * share).toFixed(digits) + " %";
const grouped = (count) => count.toLocaleString("en-US");

function bytes(count) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (count < 1024) return count.toFixed(0) + " " + unit;
    count /= 1024;
  }
  return count.toFixed(2) + " GiB";
}

// A number stays with its unit when a line breaks.
const whole = (text) => text.replace(/(\d) (ms|%)/g, "$1\u00a0$2");

// --- step time ---

const parts = (split) => Object.entries(split).filter(([, value]) => value > 0);
const partTold = ([key, value]) => `${data.labels[key]} ${ms(value)} ms`;
const share = (value, full) => (100 * value) / full + "%"; // as a length in a chart

function stack(split, full) {
  const bar = el("div", "stack");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", parts(split).map(partTold).join(", "));
  for (const [key, value] of parts(split)) {
    const looks = { width: share(value, full), background: data.colours[key] };
    bar.append(styled(titled(el("span"), partTold([key, value])), looks));
  }
  return bar;
}

function legend(split, total) {
  const list = el("ul", "legend");
  for (const [key, value] of parts(split).sort((a, b) => b[1] - a[1])) {
    const swatch = styled(el("i"), { background: data.colours[key] });
    const item = el("li", "", swatch, data.labels[key]);
    if (total)
      item.append(el("b", "", ms(value) + " ms"), el("span", "soft", percent(value / total)));
    list.append(item);
  }
  return list;
}

function roundUp(most) {
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((n) => n * unit >= most) * unit;
}

function columns(steps) {
  const top = roundUp(steps.max_ms),
    every = Math.ceil(steps.count / 14),
    box = el("div", "columns"),
    names = el("div", "names");
  for (const tick of [top / 2, top]) {
    const line = el("div", "grid", el("span", "", `${+tick.toPrecision(3)} ms`));
    box.append(styled(line, { bottom: share(tick, top) }));
  }
  steps.per_step.forEach((step, i) => {
    const told = [`${step.name}: ${ms(step.total_ms)} ms`, ...parts(step.split).map(partTold)];
    const column = titled(el("div", "column"), told.join("\n"));
    for (const [key, value] of parts(step.split)) {
      const looks = { height: share(value, step.total_ms), background: data.colours[key] };
      column.append(styled(el("div"), looks));
    }
    box.append(styled(column, { height: share(step.total_ms, top) }));
    names.append(el("span", "", i % every ? "" : step.name.replace(/^.* /, "").slice(-8)));
  });
  return [box, names];
}

// What removing a cause can gain at most, on the scale of the bar above.
function ceilings(profile) {
  if (!profile.ceilings.length) return [];
  const rows = profile.ceilings.map((cause) => {
    const left = el("i", "left"),
      gain = el("i", cause.confidence === "inferred" ? "gain inferred" : "gain");
    left.style.width = share(cause.total_ms - cause.gain_ms, cause.total_ms);
    gain.style.width = share(cause.gain_ms, cause.total_ms);
    const what = cause.name === "compute" ? "all but computing" : cause.kind;
    const text = `${what}: at most ${ms(cause.gain_ms)} ms, ${cause.factor.toFixed(2)}x`;
    const note = cause.confidence === "inferred" ? ", inferred" : "";
    return el("div", "ceiling", el("span", "small", whole(text + note)), el("div", "rest", left, gain));
  });
  const lead = "Hatched: what can be gained at most without it. Ceilings do not add up.";
  return [el("h3", "", "Ceilings"), el("p", "soft small", lead), ...rows];
}

function stepTime(profile) {
  const { steps, window: recording } = profile;
  if (!steps.count) {
    const title = "Where the time of the recording goes";
    if (!recording) return section("steps", title, "Not known: nothing was recorded.");
    const made = section("steps", title, "No steps were found: this is the whole recording.");
    const bar = stack(recording.split, recording.total_ms);
    made.append(bar, legend(recording.split, recording.total_ms), ...ceilings(profile));
    return made;
  }
  let lead = "Only one step was recorded: it may not be a typical one.";
  if (steps.count > 1) lead = "The average step, and below it every step that was recorded.";
  if (steps.source === "inferred")
    lead += ` No marker says where a step begins: inferred from calls of ${steps.basis}.`;
  const looks = steps.source === "inferred" ? "steps inferred" : "steps";
  const made = section(looks, "Where a step's time goes", lead);
  made.append(stack(steps.split, steps.average_ms), legend(steps.split, steps.average_ms));
  made.append(...ceilings(profile));
  if (steps.count > 1) made.append(...columns(steps));
  if (steps.outliers.length)
    made.append(el("p", "soft small", `Far above the median: ${steps.outliers.join(", ")}.`));
  return made;
}

// --- memory ---

function drawing(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function curve(item) {
  const from = item.curve[0][0],
    until = item.curve[item.curve.length - 1][0] || 1;
  const most = Math.max(item.peak_bytes, ...item.curve.map((point) => point[1])) || 1;
  const x = (t) => ((1000 * (t - from)) / (until - from || 1)).toFixed(2),
    y = (b) => (100 - (100 * b) / most).toFixed(2);
  const line = item.curve.map(([t, b], i) => (i ? `H${x(t)}V${y(b)}` : `M0 ${y(b)}`)).join("");
  const path = (d, fill, stroke, opacity) =>
    drawing("path", { d, fill, stroke, opacity, "stroke-width": 2 });
  const svg = drawing(
    "svg",
    { viewBox: "0 0 1000 100", preserveAspectRatio: "none" },
    path(line + "H1000V100H0Z", "var(--accent)", "none", 0.14),
    path(line, "none", "var(--accent)", 1),
  );
  const tick = (text, top) => styled(el("span", "tick", text), { top });
  const ends = [from, until].map((time) => el("span", "", ms(time) + " ms"));
  const scale = [tick(bytes(most), "0"), tick("0", "110px"), el("div", "ends", ...ends)];
  return el("div", "curve", svg, ...scale);
}

function allocator(item, several) {
  const since =
    item.lifetime_peak_bytes > item.peak_bytes
      ? `, ${bytes(item.lifetime_peak_bytes)} since the program's start`
      : "";
  const used = `peak ${bytes(item.peak_bytes)}${since}, of ${bytes(item.capacity_bytes)}`;
  const heading = (several ? item.host + " " : "") + item.allocator;
  const box = el("div", "", el("h3", "", heading), el("p", "small soft", used));
  if (item.headroom)
    box.append(el("p", "small soft", `About ${item.headroom.toFixed(1)} times the batch may fit.`));
  if (item.curve.length > 1) box.append(curve(item));
  const held = item.at_peak
    .slice(0, 5)
    .map((a) => [name(a.operation, a.shape), num(grouped(a.count)), num(bytes(a.total_bytes))]);
  if (held.length) box.append(...table(["Held at the peak", "#Count", "#Size"], held));
  return box;
}

function memory(profile) {
  const boxes = profile.memory.map((item) => allocator(item, profile.hosts.length > 1));
  if (!boxes.length) return null;
  const told = "What each allocator had handed out, over the time of the profile.";
  return section("memory", "Memory", told, el("div", "pair", ...boxes));
}
