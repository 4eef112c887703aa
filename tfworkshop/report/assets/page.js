// The page from top to bottom, for one profile or two.

// --- the answer ---

function machine(profile) {
  const { device_count: count, device_type: type, hosts, run } = profile;
  const named =
    hosts.length === 1 ? hosts[0] : `${hosts.length} hosts: ${hosts.slice(0, 8).join(", ")}`;
  return [...new Set([run, named, count ? `${count} ${type}` : "no GPU"])].join(", ");
}

// Stages are named in advice: a link where their folder is near, and what each is in words.
function advice(title, text) {
  const pieces = text.split(/\b(0\d_\w+)/).map((part) => {
    const stage = data.stages[part];
    if (!stage || !stage.link) return part;
    const link = el("a", "", part);
    link.href = stage.link + "/README.md";
    return link;
  });
  const named = [...new Set(text.match(/\b0\d_\w+/g) || [])].filter((n) => data.stages[n]);
  const words = named.map((n) => `${n}: ${data.stages[n].words}`).join("; ");
  return [
    el("p", "next", el("b", "", title), ...pieces),
    el("p", "stages", words ? el("span", "small soft", words) : null),
  ];
}

function answer(verdict) {
  return [
    el("h1", "verdict", whole(verdict.sentence)),
    ...["Evidence", "Ceiling"].map((name) => {
      const text = verdict[name.toLowerCase()];
      return text ? el("p", "evidence", el("b", "", name + ": "), whole(text)) : "";
    }),
    ...advice("Try next", verdict.next),
  ];
}

// Links to the sections, once they are all there.
function contents(root) {
  const list = el("nav", "contents");
  list.setAttribute("aria-label", "Sections");
  root.querySelectorAll("section").forEach((part, i) => {
    part.id = "part" + i;
    const link = el("a", "", part.querySelector("h2").textContent);
    link.href = "#" + part.id;
    list.append(link);
  });
  return list;
}

function origin(profile, letter) {
  const line = el("p", "soft small where", letter ? el("b", "", letter + "  ") : null);
  line.append(`${machine(profile)}, `, el("span", "mono", profile.path));
  return line;
}

function figures(profile) {
  const { steps, precision } = profile,
    list = el("dl", "figures");
  const figure = (name, value, more) =>
    list.append(el("div", "", el("dt", "", name), el("dd", "", value, el("small", "", more))));
  if (steps.count) {
    const spread =
      steps.count > 1
        ? `${steps.count} steps, median ${ms(steps.median_ms)}, 95 % within ${ms(steps.p95_ms)} ms`
        : "only one step was recorded";
    const input = steps.split.input;
    const name = steps.source === "inferred" ? "Step time (inferred)" : "Step time";
    figure(name, ms(steps.average_ms) + " ms", spread);
    figure("Waiting for input", percent(input / steps.average_ms), ms(input) + " ms a step");
  }
  const busy = profile.devices.filter((d) => d.kernels);
  if (busy.length) {
    const sum = (key) => busy.reduce((all, d) => all + d[key], 0);
    const many = busy.length > 1 ? `${busy.length} devices` : shortName(busy[0]);
    figure("Computing", percent(sum("busy_ms") / (sum("window_ms") || 1)), many);
  }
  const { bits16_percent: in16 = null, bits32_percent: in32 } = precision;
  if (in16 !== null)
    figure("Device time in 16 bit", in16.toFixed(1) + " %", in32.toFixed(1) + " % in 32 bit");
  const [largest] = [...profile.memory].sort((a, b) => b.peak_bytes - a.peak_bytes);
  if (largest) figure("Peak memory", bytes(largest.peak_bytes), largest.allocator);
  return list;
}

// --- two profiles ---

// The rows by what changed; counted: with their types, and how often they ran.
function differences(items, counted) {
  const most = Math.max(...items.map((item) => Math.abs(item.difference_ms)));
  const times = (count) => num(count === null ? "-" : String(+count.toPrecision(4)));
  return items.map((item) => {
    const change = item.difference_ms,
      looks = change < 0 ? "less" : "more";
    const width = most ? (50 * Math.abs(change)) / most : 0;
    const left = change < 0 ? 50 - width + "%" : "50%";
    const bar = styled(el("i", looks), { width: width + "%", left });
    return [
      name(item.name),
      ...(counted ? [kind(item.type)] : []),
      num(ms(item.a_ms)),
      num(ms(item.b_ms)),
      ...(counted ? [times(item.a_count), times(item.b_count)] : []),
      el("td", "num " + looks, (change > 0 ? "+" : "") + ms(change)),
      el("td", "bars", el("div", "both", bar)),
    ];
  });
}

function bothSteps(found, profiles) {
  const most = Math.max(found.a_step_ms, found.b_step_ms);
  const rows = profiles.map(({ steps }, i) => {
    const time = el("span", "num", ms(steps.average_ms) + " ms");
    return el("div", "row", el("b", "", "AB"[i]), stack(steps.split, most), time);
  });
  const largest = data.parts.map((key) => [
    key,
    Math.max(...profiles.map((p) => p.steps.split[key])),
  ]);
  const size = (item) => Math.abs(item.difference_ms);
  const split = differences([...found.split].sort((a, b) => size(b) - size(a)));
  return section(
    "steps",
    "Where a step's time goes",
    "The average step of each, on one scale.",
    ...rows,
    legend(Object.fromEntries(largest)),
    el("h3", "", "What changed"),
    ...table(["Part", "#A", "#B", "#B - A", ""], split, "split"),
  );
}

function comparison(root, found, profiles) {
  root.append(el("h1", "verdict", whole(found.sentence)));
  for (const note of found.notes) root.append(el("p", "evidence", whole(note)));
  profiles.forEach((p, i) => {
    root.append(el("p", "next", el("b", "", "AB"[i]), whole(p.verdict.sentence)));
    for (const note of p.notes) root.append(el("p", "note", "AB"[i] + ": " + note));
  });
  root.append(...advice("Try next, for B", found.next));
  if (found.per_step) root.append(bothSteps(found, profiles));
  const unit = found.per_step ? "ms a step" : "ms in all, as there is no step time";
  const told = `In ${unit}. Green got faster in B, red slower.`;
  for (const [key, title, heads] of [
    ["operations", "Operations", ["Operation", "~Type", "#A", "#B", "#Count A", "#Count B"]],
    ["kernels", "GPU kernels", ["GPU kernel", "#A", "#B"]],
  ]) {
    if (!found[key].length) continue;
    const rows = differences(found[key], key === "operations");
    const made = table([...heads, "#B - A", ""], rows);
    root.append(section(key, title + ", by the difference", told, ...made));
  }
}

// --- the whole ---

function report(root) {
  const profiles = data.profiles,
    pair = profiles.length > 1;
  document.title = (pair ? "A against B: " : "") + profiles.map((p) => p.run).join(", ");
  profiles.forEach((p, i) => root.append(origin(p, pair ? "AB"[i] : "")));
  if (pair) {
    comparison(root, data.comparison, profiles);
  } else {
    const [profile] = profiles;
    root.append(...answer(profile.verdict), figures(profile));
    for (const note of profile.notes) root.append(el("p", "note", note));
    const all = [stepTime, hosts, devices, layers, operations, kernels, copies, memory, retraced];
    const made = [...all, inputPipeline].map((part) => part(profile));
    root.append(...made.filter((part) => part));
  }
  profiles.forEach((p, i) =>
    root.append(timeline(p.timeline, pair ? "Timeline of " + "AB"[i] : "Timeline")),
  );
  const gaps = missing(profiles);
  if (gaps) root.append(gaps);
  root.insertBefore(contents(root), root.querySelector("section"));
  const made =
    "Everything here is computed from the recorded events. Each moment of a step counts once, in the " +
    "order of TensorFlow's own analysis: device, then waiting for input, exchange, compiling, " +
    "launching, other work of the host. Unlike there, tracing counts as compilation, and Python " +
    "inside a call as other. Made by ./workshop report; this page needs no network.";
  root.append(el("footer", "", made));
}

report(document.getElementById("report"));
