// The page's text, tables and charts. Every name from a profile becomes text, never markup.

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

// --- the answer ---

function machine(profile) {
  const devices = profile.device_count ? `${profile.device_count} ${profile.device_type}` : "no GPU";
  const hosts = profile.hosts.length === 1 ? profile.hosts[0] : `${profile.hosts.length} hosts: ${profile.hosts.join(", ")}`;
  return `${hosts}, ${devices}`;
}

function origin(profile, letter) {
  const line = el("p", "soft small where", letter ? el("b", "", letter + "  ") : null);
  line.append(`${profile.run}, ${machine(profile)}, `, el("span", "mono", profile.path));
  return line;
}

function figure(name, value, more) {
  const box = el("div", "", el("dt", "", name), el("dd", "", value, more ? el("small", "", more) : null));
  return box;
}

function figures(profile) {
  const steps = profile.steps, list = el("dl", "figures");
  if (steps.count) {
    const spread = steps.count > 1 ? `${steps.count} steps, ${ms(steps.min_ms)} to ${ms(steps.max_ms)} ms, σ ${ms(steps.sd_ms)}` : "one step";
    list.append(figure("Step time", ms(steps.average_ms) + " ms", spread));
    list.append(figure("Waiting for input", percent(steps.split.input / steps.average_ms), ms(steps.split.input) + " ms a step"));
  }
  if (profile.precision.bits16_percent !== null && profile.precision.bits16_percent !== undefined)
    list.append(figure("Device time in 16 bit", profile.precision.bits16_percent.toFixed(1) + " %", profile.precision.bits32_percent.toFixed(1) + " % in 32 bit"));
  const largest = profile.memory.allocators.reduce((a, b) => (a && a.peak_bytes >= b.peak_bytes ? a : b), null);
  if (largest) list.append(figure("Peak memory", bytes(largest.peak_bytes), largest.allocator));
  return list;
}

// --- step time ---

function parts(split) {
  return Object.entries(split).filter(([, value]) => value > 0);
}

function stack(split, full) {
  const bar = el("div", "stack");
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
    if (total) item.append(el("b", "", ms(value) + " ms"), el("span", "soft", percent(value / total)));
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
  const { top, ticks } = roundScale(steps.max_ms), box = el("div", "columns"), names = el("div", "names");
  for (const tick of ticks) {
    const line = el("div", "grid", el("span", "", `${+tick.toPrecision(3)} ms`));
    line.style.bottom = (100 * tick) / top + "%";
    box.append(line);
  }
  const every = Math.ceil(steps.count / 14);
  steps.per_step.forEach((step, i) => {
    const told = parts(step.split).map(([key, value]) => `${data.labels[key]} ${ms(value)} ms`);
    const column = titled(el("div", "column"), [`${step.name}: ${ms(step.total_ms)} ms`, ...told].join("\n"));
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
  const steps = profile.steps, section = el("section", "steps", el("h2", "", "Where a step's time goes"));
  if (!steps.count) {
    section.append(el("p", "soft", "Not known: TensorFlow found no steps in this profile."));
    return section;
  }
  section.append(el("p", "soft", steps.count > 1 ? "The average step, and below it every step that was recorded." : "One step was recorded."));
  section.append(stack(steps.split, steps.average_ms), legend(steps.split, steps.average_ms));
  if (steps.count > 1) section.append(...columns(steps));
  return section;
}

// --- tables ---

function table(heads, rows, looks) {
  const head = el("tr"), body = el("tbody");
  for (const name of heads) head.append(el("th", { "#": "num", "~": "wideonly" }[name[0]] || "", name.replace(/^[#~]/, "")));
  rows.forEach((cells, i) => body.append(el("tr", i < TOP ? "" : "extra", ...cells)));
  const made = el("table", looks, el("thead", "", head), body), box = el("div", "wide", made);
  if (rows.length <= TOP) return [box];
  const button = el("button", "showall", `Show ${rows.length}`);
  button.onclick = () => {
    const all = made.classList.toggle("all");
    button.textContent = all ? `Show ${TOP}` : `Show ${rows.length}`;
  };
  return [box, button];
}

function num(text) {
  return el("td", "num", text);
}

// The end of a long name, from a slash on if there is one: TensorFlow's names tell most there.
function tail(text, most = 64) {
  if (text.length <= most) return text;
  const end = text.slice(-most), slash = end.indexOf("/");
  return "…\u2060" + (slash >= 0 && slash < most / 2 ? end.slice(slash) : end);
}

function name(text, below, full) {
  const shown = full ? text : tail(text);
  const pieces = shown.split("/").flatMap((piece, i) => (i ? ["/", el("wbr"), piece] : [piece])); // breaks after a slash
  return el("td", "name", titled(el("span", "mono", ...pieces), full || text), below ? el("small", "", below) : null);
}

function kind(text) {
  return el("td", "wideonly kind", titled(el("span", "", text), text));
}

function bars(share) {
  const bar = el("div");
  bar.style.width = Math.max(0.3, 100 * share) + "%";
  return el("td", "bars", bar);
}

function operations(profile) {
  const section = el("section", "operations", el("h2", "", "The most expensive operations"));
  section.append(el("p", "soft", "Self time, without what an operation calls. The share is that of all operations on the same side."));
  for (const where of ["device", "host"]) {
    const chosen = profile.operations.filter((op) => op.where === where);
    if (!chosen.length) continue;
    const rows = chosen.map((op) => [
      name(op.name), kind(op.type), el("td", "wideonly", el("span", "tag", op.mode)), num(op.count.toLocaleString("en-US")),
      num(ms(op.self_ms)), num(percent(op.share)), bars(op.self_ms / chosen[0].self_ms),
    ]);
    section.append(el("h3", "", `On the ${where}`));
    section.append(...table(["Operation", "~Type", "~Mode", "#Count", "#Self ms", "#Share", ""], rows, where));
  }
  if (!profile.operations.length) section.append(el("p", "", "None were recorded."));
  return section;
}

function core(kernel) {
  if (kernel.tensor_core_used) return el("span", "tag yes", "used");
  return kernel.tensor_core_eligible ? el("span", "tag pity", "eligible, not used") : el("span", "tag", "no");
}

function kernels(profile) {
  if (!profile.kernels.length) return null;
  const section = el("section", "kernels", el("h2", "", "The most expensive GPU kernels"));
  section.append(el("p", "soft", "Tensor core: used by the kernel; eligible if the operation could use them."));
  const rows = profile.kernels.map((k) => [
    name(k.short, k.operation, k.name), el("td", "wideonly", core(k)), num(k.count.toLocaleString("en-US")),
    num(ms(k.average_us)), num(ms(k.total_ms)), num(percent(k.share)), bars(k.total_ms / profile.kernels[0].total_ms),
  ]);
  section.append(...table(["Kernel", "~Tensor core", "#Count", "#Mean µs", "#Total ms", "#Share", ""], rows));
  return section;
}

// --- memory and input ---

function curve(item) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const from = item.curve[0][0], until = item.curve[item.curve.length - 1][0] || 1;
  const most = Math.max(item.peak_bytes, ...item.curve.map((point) => point[1])) || 1;
  const x = (t) => (1000 * (t - from)) / (until - from || 1), y = (b) => 100 - (100 * b) / most;
  let line = "";
  item.curve.forEach(([t, b], i) => (line += i ? `H${x(t).toFixed(2)}V${y(b).toFixed(2)}` : `M0 ${y(b).toFixed(2)}`));
  svg.setAttribute("viewBox", "0 0 1000 100");
  svg.setAttribute("preserveAspectRatio", "none");
  const styles = [[line + "H1000V100H0Z", "var(--accent)", "none", 0.14], [line, "none", "var(--accent)", 1]];
  for (const [d, fill, stroke, opacity] of styles) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    for (const [key, value] of Object.entries({ d, fill, stroke, opacity, "stroke-width": 2 })) path.setAttribute(key, value);
    svg.append(path);
  }
  const tick = el("span", "tick", bytes(most)), zero = el("span", "tick", "0");
  tick.style.top = "0";
  zero.style.top = "110px";
  const ends = el("div", "ends", el("span", "", ms(from) + " ms"), el("span", "", ms(until) + " ms"));
  return el("div", "curve", svg, tick, zero, ends);
}

function memory(profile) {
  const found = profile.memory.allocators;
  if (!found.length) return null;
  const section = el("section", "memory", el("h2", "", "Memory"), el("p", "soft", "What each allocator had handed out, over the time of the profile."));
  const grid = el("div", "pair");
  for (const item of found) {
    const where = profile.hosts.length > 1 ? item.host + " " : "";
    const since = item.lifetime_peak_bytes > item.peak_bytes ? `, ${bytes(item.lifetime_peak_bytes)} since the program's start` : "";
    const used = `peak ${bytes(item.peak_bytes)}${since}, of ${bytes(item.capacity_bytes)}`;
    const box = el("div", "", el("h3", "", where + item.allocator), el("p", "small soft", used));
    if (item.curve.length > 1) box.append(curve(item));
    grid.append(box);
  }
  section.append(grid);
  return section;
}

function inputPipeline(profile) {
  const found = profile.input_pipeline.bottlenecks || [];
  if (!found.length) return null;
  const section = el("section", "input", el("h2", "", "Input pipeline"));
  section.append(el("p", "soft", profile.input_pipeline.statement));
  const rows = found.map((item) => [
    name(item.iterator, item.suggestion), el("td", "wideonly", item.pipeline), num(ms(item.slowest_call_ms)), num(ms(item.iterator_ms)),
  ]);
  section.append(...table(["tf.data bottleneck", "~Pipeline", "#Slowest call, ms", "#In this iterator, ms"], rows));
  return section;
}

function missing(profiles) {
  const lines = profiles.flatMap((p, i) => p.missing.map((line) => (profiles.length > 1 ? "AB"[i] + ": " : "") + line));
  if (!lines.length) return null;
  const list = el("ul", "soft small");
  for (const line of lines) list.append(el("li", "", line));
  return el("section", "missing", el("h2", "", "Not in this profile"), list);
}

// --- two profiles ---

function difference(items, most, typed) {
  return items.map((item) => {
    const looks = item.difference_ms < 0 ? "less" : "more", bar = el("i", looks);
    const width = most ? (50 * Math.abs(item.difference_ms)) / most : 0;
    bar.style.width = width + "%";
    bar.style.left = item.difference_ms < 0 ? 50 - width + "%" : "50%";
    const sign = item.difference_ms > 0 ? "+" : "";
    return [
      name(item.name), ...(typed ? [kind(item.type)] : []), num(ms(item.a_ms)), num(ms(item.b_ms)),
      el("td", "num " + looks, sign + ms(item.difference_ms)), el("td", "bars", el("div", "both", bar)),
    ];
  });
}

function comparison(root, found, profiles) {
  const unit = found.per_step ? "ms a step" : "ms in all, as there is no step time";
  const largest = (items) => Math.max(0, ...items.map((item) => Math.abs(item.difference_ms)));
  root.append(el("h1", "verdict", whole(found.sentence)));
  profiles.forEach((p, i) => {
    root.append(el("p", "next", el("b", "", "AB"[i]), whole(p.verdict.sentence)));
    for (const note of p.notes) root.append(el("p", "note", "AB"[i] + ": " + note));
  });
  if (found.per_step) {
    const section = el("section", "steps", el("h2", "", "Where a step's time goes"), el("p", "soft", "The average step of each, on one scale."));
    const most = Math.max(found.a_step_ms, found.b_step_ms);
    profiles.forEach((p, i) => section.append(el("div", "row", el("b", "", "AB"[i]), stack(p.steps.split, most), el("span", "num", ms(p.steps.average_ms) + " ms"))));
    section.append(legend(Object.fromEntries(Object.keys(data.labels).map((key) => [key, Math.max(...profiles.map((p) => p.steps.split[key]))]))));
    const sorted = [...found.split].sort((a, b) => Math.abs(b.difference_ms) - Math.abs(a.difference_ms));
    section.append(el("h3", "", "What changed"), ...table(["Part", "#A", "#B", "#B - A", ""], difference(sorted, largest(sorted)), "split"));
    root.append(section);
  }
  for (const [title, key] of [["Operations", "operations"], ["GPU kernels", "kernels"]]) {
    if (!found[key].length) continue;
    const typed = key === "operations";
    const section = el("section", key, el("h2", "", title + ", by the difference"), el("p", "soft", `In ${unit}. Green got faster in B, red slower.`));
    section.append(...table([title.replace(/s$/, ""), ...(typed ? ["~Type"] : []), "#A", "#B", "#B - A", ""], difference(found[key], largest(found[key]), typed)));
    root.append(section);
  }
}

// --- the whole ---

function report(root) {
  const profiles = data.profiles, pair = profiles.length > 1;
  document.title = (pair ? "A against B: " : "") + profiles.map((p) => p.run).join(", ");
  profiles.forEach((p, i) => root.append(origin(p, pair ? "AB"[i] : "")));
  if (pair) {
    comparison(root, data.comparison, profiles);
  } else {
    const [profile] = profiles;
    root.append(el("h1", "verdict", whole(profile.verdict.sentence)));
    root.append(el("p", "next", el("b", "", "Try next"), profile.verdict.next));
    root.append(figures(profile));
    for (const note of profile.notes) root.append(el("p", "note", note));
    for (const part of [stepTime, operations, kernels, memory, inputPipeline]) {
      const section = part(profile);
      if (section) root.append(section);
    }
  }
  profiles.forEach((p, i) => root.append(timeline(p.timeline, pair ? "Timeline of " + "AB"[i] : "Timeline")));
  const gaps = missing(profiles);
  if (gaps) root.append(gaps);
  root.append(el("footer", "", "Figures from TensorFlow's own profile converters. Made by ./workshop report; this page needs no network."));
}

report(document.getElementById("report"));
