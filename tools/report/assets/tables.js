// The tables: ten rows, and more on demand.

function table(heads, rows, looks) {
  const head = el("tr"),
    body = el("tbody");
  for (const name of heads)
    head.append(
      el("th", { "#": "num", "~": "wideonly" }[name[0]] || "", name.replace(/^[#~]/, "")),
    );
  rows.forEach((cells, i) => body.append(el("tr", i < TOP ? "" : "extra", ...cells)));
  const made = el("table", looks, el("thead", "", head), body),
    box = el("div", "wide", made);
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
  const end = text.slice(-most),
    slash = end.indexOf("/");
  return "…\u2060" + (slash >= 0 && slash < most / 2 ? end.slice(slash) : end);
}

function name(text, below, full) {
  const shown = full ? text : tail(text);
  const pieces = shown.split("/").flatMap((piece, i) => (i ? ["/", el("wbr"), piece] : [piece])); // breaks after a slash
  return el(
    "td",
    "name",
    titled(el("span", "mono", ...pieces), full || text),
    below ? el("small", "", below) : null,
  );
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
  section.append(
    el(
      "p",
      "soft",
      "Self time, without what an operation calls. The share is that of all operations on the same side.",
    ),
  );
  for (const where of ["device", "host"]) {
    const chosen = profile.operations.filter((op) => op.where === where);
    if (!chosen.length) continue;
    const rows = chosen.map((op) => [
      name(op.name),
      kind(op.type),
      el("td", "wideonly", el("span", "tag", op.mode)),
      num(op.count.toLocaleString("en-US")),
      num(ms(op.self_ms)),
      num(percent(op.share)),
      bars(op.self_ms / chosen[0].self_ms),
    ]);
    section.append(el("h3", "", `On the ${where}`));
    section.append(
      ...table(["Operation", "~Type", "~Mode", "#Count", "#Self ms", "#Share", ""], rows, where),
    );
  }
  if (!profile.operations.length) section.append(el("p", "", "None were recorded."));
  return section;
}

function core(kernel) {
  if (kernel.tensor_core_used === null) return el("span", "tag", "not known");
  if (kernel.tensor_core_used) return el("span", "tag yes", "used");
  return kernel.tensor_core_eligible
    ? el("span", "tag pity", "eligible, not used")
    : el("span", "tag", "no");
}

function kernels(profile) {
  if (!profile.kernels.length) return null;
  const section = el("section", "kernels", el("h2", "", "The most expensive GPU kernels"));
  section.append(
    el("p", "soft", "Tensor core: used by the kernel; eligible if the operation could use them."),
  );
  const rows = profile.kernels.map((k) => [
    name(k.short, k.operation, k.name),
    el("td", "wideonly", core(k)),
    num(k.count.toLocaleString("en-US")),
    num(ms(k.average_us)),
    num(ms(k.total_ms)),
    num(percent(k.share)),
    bars(k.total_ms / profile.kernels[0].total_ms),
  ]);
  section.append(
    ...table(["Kernel", "~Tensor core", "#Count", "#Mean µs", "#Total ms", "#Share", ""], rows),
    ...kinds(profile),
  );
  return section;
}

function inputPipeline(profile) {
  const found = profile.input_pipeline.bottlenecks || [];
  if (!found.length) return null;
  const section = el("section", "input", el("h2", "", "Input pipeline"));
  section.append(el("p", "soft", profile.input_pipeline.statement));
  const rows = found.map((item) => [
    name(item.iterator, item.suggestion),
    el("td", "wideonly", item.pipeline),
    num(ms(item.slowest_call_ms)),
    num(ms(item.iterator_ms)),
  ]);
  section.append(
    ...table(
      ["tf.data bottleneck", "~Pipeline", "#Slowest call, ms", "#In this iterator, ms"],
      rows,
    ),
  );
  return section;
}

function missing(profiles) {
  const lines = profiles.flatMap((p, i) =>
    p.missing.map((line) => (profiles.length > 1 ? "AB"[i] + ": " : "") + line),
  );
  if (!lines.length) return null;
  const list = el("ul", "soft small");
  for (const line of lines) list.append(el("li", "", line));
  return el("section", "missing", el("h2", "", "Not in this profile"), list);
}
