// The tables: ten rows, and more on demand.

function table(heads, rows, looks) {
  const kinds = { "#": "num", "~": "wideonly" };
  const head = heads.map((name) => el("th", kinds[name[0]], name.replace(/^[#~]/, "")));
  const body = rows.map((cells, i) => el("tr", i < TOP ? "" : "extra", ...cells));
  const made = el("table", looks, el("thead", "", el("tr", "", ...head)), el("tbody", "", ...body)),
    box = el("div", "wide", made);
  if (rows.length <= TOP) return [box];
  const button = el("button", "showall", `Show ${rows.length}`);
  button.onclick = () => {
    const all = made.classList.toggle("all");
    button.textContent = `Show ${all ? TOP : rows.length}`;
  };
  return [box, button];
}

const num = (text) => el("td", "num", text);
const kind = (text) => el("td", "wideonly kind", titled(el("span", "", text), text));

// The end of a long name, from a slash on if there is one: TensorFlow's names tell most there.
function tail(text, most = 64) {
  if (text.length <= most) return text;
  const end = text.slice(-most),
    slash = end.indexOf("/");
  return "…\u2060" + (slash >= 0 && slash < most / 2 ? end.slice(slash) : end);
}

function name(text, below, full) {
  const shown = full ? text : tail(text);
  // A line may break after a slash.
  const pieces = shown.split("/").flatMap((piece, i) => (i ? ["/", el("wbr"), piece] : [piece]));
  const span = titled(el("span", "mono", ...pieces), full || text);
  return el("td", "name", span, below ? el("small", "", below) : null);
}

function bars(part) {
  return el("td", "bars", styled(el("div"), { width: Math.max(0.3, 100 * part) + "%" }));
}

function operations(profile) {
  const told =
    "Self time, without what an operation calls. The share is that of all operations on the same " +
    "side.";
  const made = section("operations", "The most expensive operations", told);
  for (const where of ["device", "host"]) {
    const chosen = profile.operations.filter((op) => op.where === where);
    if (!chosen.length) continue;
    const rows = chosen.map((op) => [
      name(op.name),
      kind(op.type),
      el("td", "wideonly", el("span", "tag", op.mode)),
      num(grouped(op.count)),
      num(ms(op.self_ms)),
      num(percent(op.share)),
      bars(op.self_ms / chosen[0].self_ms),
    ]);
    const heads = ["Operation", "~Type", "~Mode", "#Count", "#Self ms", "#Share", ""];
    made.append(el("h3", "", `On the ${where}`), ...table(heads, rows, where));
  }
  if (!profile.operations.length) made.append(el("p", "", "None were recorded."));
  return made;
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
  const rows = profile.kernels.map((k) => [
    name(k.short, k.operation, k.name),
    el("td", "wideonly", core(k)),
    num(grouped(k.count)),
    num(ms(k.average_us)),
    num(ms(k.total_ms)),
    num(percent(k.share)),
    bars(k.share / profile.kernels[0].share),
  ]);
  const heads = ["Kernel", "~Tensor core", "#Count", "#Mean µs", "#Total ms", "#Share", ""];
  const told = "Tensor core: used by the kernel; eligible if the operation could use them.";
  const title = `The most ${profile.is_ideal ? "frequent" : "expensive"} GPU kernels`;
  return section("kernels", title, told, ...table(heads, rows), ...kinds(profile));
}

function copies(profile) {
  if (!profile.copies.length) return null;
  const rows = profile.copies.map((copy) => [
    name(copy.source || "-"),
    name(copy.reader || "-"),
    el("td", "", copy.way),
    num(grouped(copy.bytes)),
    num(String(+copy.per_step.toPrecision(3))),
  ]);
  const often = profile.steps.count ? "#A step" : "#In all";
  const lead = "Which operation made what is copied, and which needs it. The host waits for its copies.";
  return section("copies", "Copies", lead, ...table(["From", "For", "Way", "#Bytes", often], rows));
}

function inputPipeline(profile) {
  if (!profile.input_pipeline.length) return null;
  const rows = profile.input_pipeline.map((item) => [
    name(item.iterator, item.suggestion),
    el("td", "wideonly", item.pipeline),
    num(ms(item.slowest_call_ms)),
    num(ms(item.iterator_ms)),
  ]);
  const heads = ["tf.data bottleneck", "~Pipeline", "#Slowest call, ms", "#In this iterator, ms"];
  const lead =
    "The slowest call of each pipeline, and the iterator in it that ran longest while none of those " +
    "that feed it did.";
  return section("input", "Input pipeline", lead, ...table(heads, rows));
}

function missing(profiles) {
  const lines = profiles.flatMap((p, i) =>
    p.missing.map((line) => (profiles.length > 1 ? "AB"[i] + ": " : "") + line),
  );
  if (!lines.length) return null;
  const items = lines.map((line) => el("li", "", line));
  return section("missing", "Not in this profile", null, el("ul", "soft small", ...items));
}
