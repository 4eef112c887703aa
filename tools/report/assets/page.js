// The page from top to bottom, for one profile or two.

// --- the answer ---

function machine(profile) {
  const devices = profile.device_count
    ? `${profile.device_count} ${profile.device_type}`
    : "no GPU";
  const hosts =
    profile.hosts.length === 1
      ? profile.hosts[0]
      : `${profile.hosts.length} hosts: ${profile.hosts.slice(0, 8).join(", ")}`;
  return [...new Set([profile.run, hosts, devices])].join(", ");
}

// Stages are named in advice: a link where their folder is near, and what each is in words.
function advice(text) {
  const found = text.split(/\b(0\d_\w+)/);
  return found.map((part) => {
    const stage = data.stages[part];
    if (!stage || !stage.link) return part;
    const link = el("a", "", part);
    link.href = stage.link + "/README.md";
    return link;
  });
}

function stageWords(text) {
  const found = [...new Set(text.match(/\b0\d_\w+/g) || [])].filter((n) => data.stages[n]);
  if (!found.length) return null;
  return el("span", "small soft", found.map((n) => `${n}: ${data.stages[n].words}`).join("; "));
}

function answer(root, verdict) {
  root.append(el("h1", "verdict", whole(verdict.sentence)));
  if (verdict.evidence) root.append(el("p", "evidence", whole(verdict.evidence)));
  root.append(
    el("p", "next", el("b", "", "Try next"), ...advice(verdict.next)),
    el("p", "stages", stageWords(verdict.next)),
  );
}

// Links to the sections, once they are all there.
function contents(root) {
  const list = el("nav", "contents");
  list.setAttribute("aria-label", "Sections");
  root.querySelectorAll("section").forEach((section, i) => {
    section.id = section.id || "part" + i;
    const link = el("a", "", section.querySelector("h2").textContent);
    link.href = "#" + section.id;
    list.append(link);
  });
  return list;
}

function origin(profile, letter) {
  const line = el("p", "soft small where", letter ? el("b", "", letter + "  ") : null);
  line.append(`${machine(profile)}, `, el("span", "mono", profile.path));
  return line;
}

function figure(name, value, more) {
  const box = el(
    "div",
    "",
    el("dt", "", name),
    el("dd", "", value, more ? el("small", "", more) : null),
  );
  return box;
}

function figures(profile) {
  const steps = profile.steps,
    list = el("dl", "figures");
  if (steps.count) {
    const spread =
      steps.count > 1
        ? `${steps.count} steps, median ${ms(steps.median_ms)}, 95 % within ${ms(steps.p95_ms)} ms`
        : "only one step was recorded";
    list.append(figure("Step time", ms(steps.average_ms) + " ms", spread));
    list.append(
      figure(
        "Waiting for input",
        percent(steps.split.input / steps.average_ms),
        ms(steps.split.input) + " ms a step",
      ),
    );
  }
  const busy = profile.devices.filter((d) => d.kernels);
  if (busy.length) {
    const sum = (key) => busy.reduce((all, d) => all + d[key], 0);
    const many = busy.length > 1 ? `${busy.length} devices` : shortName(busy[0]);
    list.append(figure("Computing", percent(sum("busy_ms") / sum("window_ms")), many));
  }
  if (profile.precision.bits16_percent !== null && profile.precision.bits16_percent !== undefined)
    list.append(
      figure(
        "Device time in 16 bit",
        profile.precision.bits16_percent.toFixed(1) + " %",
        profile.precision.bits32_percent.toFixed(1) + " % in 32 bit",
      ),
    );
  const largest = profile.memory.allocators.reduce(
    (a, b) => (a && a.peak_bytes >= b.peak_bytes ? a : b),
    null,
  );
  if (largest) list.append(figure("Peak memory", bytes(largest.peak_bytes), largest.allocator));
  return list;
}

// --- two profiles ---

function times(count) {
  return count === null ? "-" : String(+count.toPrecision(4));
}

function difference(items, most, typed) {
  return items.map((item) => {
    const looks = item.difference_ms < 0 ? "less" : "more",
      bar = el("i", looks);
    const width = most ? (50 * Math.abs(item.difference_ms)) / most : 0;
    bar.style.width = width + "%";
    bar.style.left = item.difference_ms < 0 ? 50 - width + "%" : "50%";
    const sign = item.difference_ms > 0 ? "+" : "";
    return [
      name(item.name),
      ...(typed ? [kind(item.type)] : []),
      num(ms(item.a_ms)),
      num(ms(item.b_ms)),
      ...(typed ? [num(times(item.a_count)), num(times(item.b_count))] : []),
      el("td", "num " + looks, sign + ms(item.difference_ms)),
      el("td", "bars", el("div", "both", bar)),
    ];
  });
}

function comparison(root, found, profiles) {
  const unit = found.per_step ? "ms a step" : "ms in all, as there is no step time";
  const largest = (items) => Math.max(0, ...items.map((item) => Math.abs(item.difference_ms)));
  root.append(el("h1", "verdict", whole(found.sentence)));
  for (const note of found.notes) root.append(el("p", "evidence", whole(note)));
  profiles.forEach((p, i) => {
    root.append(el("p", "next", el("b", "", "AB"[i]), whole(p.verdict.sentence)));
    for (const note of p.notes) root.append(el("p", "note", "AB"[i] + ": " + note));
  });
  root.append(
    el("p", "next", el("b", "", "Try next, for B"), ...advice(found.next)),
    el("p", "stages", stageWords(found.next)),
  );
  if (found.per_step) {
    const section = el(
      "section",
      "steps",
      el("h2", "", "Where a step's time goes"),
      el("p", "soft", "The average step of each, on one scale."),
    );
    const most = Math.max(found.a_step_ms, found.b_step_ms);
    profiles.forEach((p, i) =>
      section.append(
        el(
          "div",
          "row",
          el("b", "", "AB"[i]),
          stack(p.steps.split, most),
          el("span", "num", ms(p.steps.average_ms) + " ms"),
        ),
      ),
    );
    section.append(
      legend(
        Object.fromEntries(
          data.parts.map((key) => [
            key,
            Math.max(...profiles.map((p) => p.steps.split[key])),
          ]),
        ),
      ),
    );
    const sorted = [...found.split].sort(
      (a, b) => Math.abs(b.difference_ms) - Math.abs(a.difference_ms),
    );
    section.append(
      el("h3", "", "What changed"),
      ...table(["Part", "#A", "#B", "#B - A", ""], difference(sorted, largest(sorted)), "split"),
    );
    root.append(section);
  }
  for (const [title, key] of [
    ["Operations", "operations"],
    ["GPU kernels", "kernels"],
  ]) {
    if (!found[key].length) continue;
    const typed = key === "operations";
    const section = el(
      "section",
      key,
      el("h2", "", title + ", by the difference"),
      el("p", "soft", `In ${unit}. Green got faster in B, red slower.`),
    );
    section.append(
      ...table(
        [
          ...[title.replace(/s$/, ""), ...(typed ? ["~Type"] : []), "#A", "#B"],
          ...(typed ? ["#Count A", "#Count B"] : []),
          ...["#B - A", ""],
        ],
        difference(found[key], largest(found[key]), typed),
      ),
    );
    root.append(section);
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
    answer(root, profile.verdict);
    root.append(figures(profile));
    for (const note of profile.notes) root.append(el("p", "note", note));
    const parts = [stepTime, hosts, devices, layers, operations, kernels];
    for (const part of [...parts, memory, retraced, inputPipeline]) {
      const section = part(profile);
      if (section) root.append(section);
    }
  }
  profiles.forEach((p, i) =>
    root.append(timeline(p.timeline, pair ? "Timeline of " + "AB"[i] : "Timeline")),
  );
  const gaps = missing(profiles);
  if (gaps) root.append(gaps);
  root.insertBefore(contents(root), root.querySelector("section"));
  root.append(
    el(
      "footer",
      "",
      "Steps, operations, kernels and memory from TensorFlow's own profile converters; devices, layers and timeline from the recorded events. Made by ./workshop report; this page needs no network.",
    ),
  );
}

report(document.getElementById("report"));
