// What the scripts share, and the charts. Every name from a profile becomes text, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const TOP = 10;

function el(tag, looks, ...children) {
  const node = document.createElement(tag);
  if (looks) node.className = looks;
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function ms(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(size >= 10 ? 1 : 2);
}

function percent(share, digits = 1) {
  return (100 * share).toFixed(digits) + " %";
}

function bytes(count) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (count < 1024) return count.toFixed(0) + " " + unit;
    count /= 1024;
  }
  return count.toFixed(2) + " GiB";
}

// A number stays with its unit when a line breaks.
function whole(text) {
  return text.replace(/(\d) (ms|%)/g, "$1\u00a0$2");
}

function titled(node, title) {
  node.title = title;
  return node;
}

// --- step time ---

function parts(split) {
  return Object.entries(split).filter(([, value]) => value > 0);
}

function stack(split, full) {
  const bar = el("div", "stack");
  const told = parts(split).map(([key, value]) => `${data.labels[key]} ${ms(value)} ms`);
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", told.join(", "));
  for (const [key, value] of parts(split)) {
    const part = titled(el("span"), `${data.labels[key]} ${ms(value)} ms`);
    part.style.width = (100 * value) / full + "%";
    part.style.background = data.colours[key];
    bar.append(part);
  }
  return bar;
}

function legend(split, total) {
  const list = el("ul", "legend");
  for (const [key, value] of parts(split).sort((a, b) => b[1] - a[1])) {
    const swatch = el("i");
    swatch.style.background = data.colours[key];
    const item = el("li", "", swatch, data.labels[key]);
    if (total)
      item.append(el("b", "", ms(value) + " ms"), el("span", "soft", percent(value / total)));
    item.dataset.part = key;
    list.append(item);
  }
  return list;
}

function roundScale(most) {
  const unit = 10 ** Math.floor(Math.log10(most));
  const top = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((n) => n * unit >= most) * unit;
  return { top, ticks: [top / 2, top] };
}

function columns(steps) {
  const { top, ticks } = roundScale(steps.max_ms),
    box = el("div", "columns"),
    names = el("div", "names");
  for (const tick of ticks) {
    const line = el("div", "grid", el("span", "", `${+tick.toPrecision(3)} ms`));
    line.style.bottom = (100 * tick) / top + "%";
    box.append(line);
  }
  const every = Math.ceil(steps.count / 14);
  steps.per_step.forEach((step, i) => {
    const told = parts(step.split).map(([key, value]) => `${data.labels[key]} ${ms(value)} ms`);
    const column = titled(
      el("div", "column"),
      [`${step.name}: ${ms(step.total_ms)} ms`, ...told].join("\n"),
    );
    column.style.height = (100 * step.total_ms) / top + "%";
    for (const [key, value] of parts(step.split)) {
      const part = el("div");
      part.style.height = (100 * value) / step.total_ms + "%";
      part.style.background = data.colours[key];
      column.append(part);
    }
    box.append(column);
    names.append(el("span", "", i % every ? "" : step.name.replace(/^.* /, "").slice(-8)));
  });
  return [box, names];
}

function stepTime(profile) {
  const steps = profile.steps,
    section = el("section", "steps", el("h2", "", "Where a step's time goes"));
  if (!steps.count) {
    section.append(el("p", "soft", "Not known: TensorFlow found no steps in this profile."));
    return section;
  }
  section.append(
    el(
      "p",
      "soft",
      steps.count > 1
        ? "The average step, and below it every step that was recorded."
        : "Only one step was recorded: it may not be a typical one.",
    ),
  );
  section.append(stack(steps.split, steps.average_ms), legend(steps.split, steps.average_ms));
  if (steps.count > 1) section.append(...columns(steps));
  if (steps.outliers.length)
    section.append(el("p", "soft small", "Far above the median: " + steps.outliers.join(", ") + "."));
  return section;
}

// --- memory ---

function curve(item) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const from = item.curve[0][0],
    until = item.curve[item.curve.length - 1][0] || 1;
  const most = Math.max(item.peak_bytes, ...item.curve.map((point) => point[1])) || 1;
  const x = (t) => (1000 * (t - from)) / (until - from || 1),
    y = (b) => 100 - (100 * b) / most;
  let line = "";
  item.curve.forEach(
    ([t, b], i) => (line += i ? `H${x(t).toFixed(2)}V${y(b).toFixed(2)}` : `M0 ${y(b).toFixed(2)}`),
  );
  svg.setAttribute("viewBox", "0 0 1000 100");
  svg.setAttribute("preserveAspectRatio", "none");
  const styles = [
    [line + "H1000V100H0Z", "var(--accent)", "none", 0.14],
    [line, "none", "var(--accent)", 1],
  ];
  for (const [d, fill, stroke, opacity] of styles) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    for (const [key, value] of Object.entries({ d, fill, stroke, opacity, "stroke-width": 2 }))
      path.setAttribute(key, value);
    svg.append(path);
  }
  const tick = el("span", "tick", bytes(most)),
    zero = el("span", "tick", "0");
  tick.style.top = "0";
  zero.style.top = "110px";
  const ends = el(
    "div",
    "ends",
    el("span", "", ms(from) + " ms"),
    el("span", "", ms(until) + " ms"),
  );
  return el("div", "curve", svg, tick, zero, ends);
}

function memory(profile) {
  const found = profile.memory.allocators;
  if (!found.length) return null;
  const section = el(
    "section",
    "memory",
    el("h2", "", "Memory"),
    el("p", "soft", "What each allocator had handed out, over the time of the profile."),
  );
  const grid = el("div", "pair");
  for (const item of found) {
    const where = profile.hosts.length > 1 ? item.host + " " : "";
    const since =
      item.lifetime_peak_bytes > item.peak_bytes
        ? `, ${bytes(item.lifetime_peak_bytes)} since the program's start`
        : "";
    const used = `peak ${bytes(item.peak_bytes)}${since}, of ${bytes(item.capacity_bytes)}`;
    const box = el("div", "", el("h3", "", where + item.allocator), el("p", "small soft", used));
    if (item.headroom)
      box.append(el("p", "small soft", `About ${item.headroom.toFixed(1)} times the batch may fit.`));
    if (item.curve.length > 1) box.append(curve(item));
    const held = item.at_peak.slice(0, 5).map((a) => [
      name(a.operation, a.shape),
      num(a.count.toLocaleString("en-US")),
      num(bytes(a.total_bytes)),
    ]);
    if (held.length) box.append(...table(["Held at the peak", "#Count", "#Size"], held));
    grid.append(box);
  }
  section.append(grid);
  return section;
}
