// The timeline: a canvas that draws only what is in view, and nothing smaller than a pixel twice.

const LINE = 18, RULER = 34, PAD = 7, HEAD = 30;
const HUES = ["#5b8db8", "#d08c4a", "#6aa57c", "#b7739c", "#8a80c2", "#b0a04a", "#4fa3a5", "#c4736b"];

function duration(ns) {
  const [unit, size] = ns < 1e3 ? ["ns", 1] : ns < 1e6 ? ["µs", 1e3] : ns < 1e9 ? ["ms", 1e6] : ["s", 1e9];
  const value = ns / size;
  return value.toFixed(size === 1 || value >= 100 ? 0 : value >= 10 ? 1 : 2) + " " + unit;
}

// By name, without its numbers: step 10 and step 11 look the same.
function hue(name) {
  const text = name.replace(/\d+/g, "");
  let hash = 7;
  for (let i = 0; i < Math.min(text.length, 80); i++) hash = (hash * 31 + text.charCodeAt(i)) | 0;
  return HUES[Math.abs(hash) % HUES.length];
}

function unpack([deltas, durations, names, details]) {
  const start = new Float64Array(deltas.length), end = new Float64Array(deltas.length);
  let at = 0;
  for (let i = 0; i < deltas.length; i++) {
    at += deltas[i];
    start[i] = at;
    end[i] = at + durations[i];
  }
  return { start, end, name: Int32Array.from(names), detail: Int32Array.from(details) };
}

// The headings and lanes from top to bottom, each with its place.
function arrange(processes) {
  const items = [];
  let y = RULER;
  for (const process of processes) {
    items.push({ title: process.name + (process.lanes.length ? "" : "  (no events)"), y, height: HEAD, rows: [] });
    y += HEAD;
    for (const lane of process.lanes) {
      const rows = lane.rows.map(unpack), height = rows.length * LINE + 2 * PAD;
      items.push({ lane: lane.name, y, height, rows });
      y += height;
    }
  }
  return { items, height: y + 4 };
}

// The first event of a row that ends after a time.
function firstAfter(row, time) {
  let low = 0, high = row.end.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.end[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

function timeline(packed, title) {
  const section = el("section", "timeline", el("h2", "", title));
  if (!packed.processes.length) {
    section.append(el("p", "soft", "No events were recorded."));
    return section;
  }
  const strings = packed.strings, colours = strings.map(hue), { items, height } = arrange(packed.processes);
  const left = packed.left_out ? ` The ${packed.left_out.toLocaleString("en-US")} shortest are left out here; --trace keeps them.` : "";
  section.append(el("p", "soft", `${packed.events.toLocaleString("en-US")} events on the threads and streams that ran.${left} Click into it; then the wheel zooms, dragging pans. Keys: + − or W S zoom, ← → or A D pan, ↑ ↓ scroll, 0 fits. Double click zooms to an event.`));

  const scroll = el("div", "scroll"), canvas = el("canvas"), room = el("div"), tip = el("div", "tip"), chosen = el("p", "chosen soft");
  const find = el("input"), count = el("span", "soft small"), bar = el("div", "tools");
  find.placeholder = "Find in names";
  find.type = "search";
  tip.hidden = true;
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "application");
  scroll.setAttribute("aria-label", title + ": zoom with plus and minus, pan with the arrow keys");
  scroll.append(canvas, room);
  scroll.style.height = `min(${height + 2}px, 78vh)`;
  section.append(bar, scroll, chosen, tip);

  const steps = packed.steps, first = steps.length ? steps[0][1] : 0;
  const last = steps.length ? Math.max(...steps.map((s) => s[1] + s[2])) : packed.length;
  const margin = (last - first) * 0.01;
  const whole = [Math.max(0, first - margin), Math.min(packed.length, last + margin)];
  let [from, until] = whole, hover = null, marked = null, matches = null, drawn = 0, pending = false;
  let style = {}, gutter = 190, wide = 0, tall = 0;

  const scale = () => (wide - gutter) / (until - from);
  const toX = (time) => gutter + (time - from) * scale();
  const toTime = (x) => from + (x - gutter) / scale();

  function look(a, b) {
    const span = Math.min(Math.max(b - a, 50), packed.length * 1.02), low = -packed.length * 0.01;
    from = Math.min(Math.max(a, low), packed.length * 1.01 - span);
    until = from + span;
    draw();
  }
  const zoom = (factor, x = gutter + (wide - gutter) / 2) => look(toTime(x) - (toTime(x) - from) * factor, toTime(x) + (until - toTime(x)) * factor);
  const pan = (share) => look(from + share * (until - from), until + share * (until - from));

  function draw() {
    if (!pending) requestAnimationFrame(paint);
    pending = true;
  }

  function measure() {
    const dpr = window.devicePixelRatio || 1, css = getComputedStyle(document.documentElement);
    for (const key of ["paper", "ink", "soft", "faint", "line", "step"]) style[key] = css.getPropertyValue("--" + key).trim();
    wide = scroll.clientWidth;
    tall = scroll.clientHeight;
    gutter = wide < 640 ? 96 : 200;
    canvas.width = wide * dpr;
    canvas.height = tall * dpr;
    canvas.style.width = wide + "px";
    canvas.style.height = tall + "px";
    room.style.height = Math.max(0, height - tall) + "px";
    canvas.getContext("2d").setTransform(dpr, 0, 0, dpr, 0, 0);
  }

  function paint() {
    pending = false;
    const began = performance.now(), ctx = canvas.getContext("2d"), top = scroll.scrollTop;
    ctx.fillStyle = style.paper;
    ctx.fillRect(0, 0, wide, tall);
    ctx.textBaseline = "middle";
    drawn = 0;
    paintSteps(ctx);
    for (const item of items) if (item.y + item.height > top + RULER && item.y < top + tall) paintItem(ctx, item, item.y - top);
    paintRuler(ctx);
    Object.assign(scroll.dataset, { from: Math.round(from), until: Math.round(until), drawn, paint: (performance.now() - began).toFixed(2) });
  }

  function paintSteps(ctx) {
    ctx.fillStyle = style.step;
    steps.forEach(([, start, length], i) => {
      const a = Math.max(gutter, toX(start)), b = Math.min(wide, toX(start + length));
      if (b > a && i % 2 === 0) ctx.fillRect(a, 0, b - a, tall);
    });
  }

  function paintItem(ctx, item, y) {
    if (item.title !== undefined) {
      ctx.fillStyle = style.faint;
      ctx.fillRect(0, y + 3, wide, HEAD - 6);
      ctx.fillStyle = style.ink;
      ctx.font = "600 14px system-ui, sans-serif";
      ctx.fillText(item.title, 10, y + HEAD / 2);
      return;
    }
    item.rows.forEach((row, depth) => paintRow(ctx, row, y + PAD + depth * LINE));
    ctx.fillStyle = style.paper;
    ctx.fillRect(0, y, gutter - 4, item.height);
    ctx.fillStyle = style.soft;
    ctx.font = "13px system-ui, sans-serif";
    let label = item.lane;
    const room = gutter - 20;
    if (ctx.measureText(label).width > room) {
      const keep = Math.max(1, Math.floor((label.length * room) / ctx.measureText(label).width) - 1);
      label = label.slice(0, keep) + "…";
    }
    ctx.fillText(label, 10, y + PAD + LINE / 2);
    ctx.strokeStyle = style.faint;
    ctx.beginPath();
    ctx.moveTo(0, y + item.height - 0.5);
    ctx.lineTo(wide, y + item.height - 0.5);
    ctx.moveTo(gutter - 4.5, y);
    ctx.lineTo(gutter - 4.5, y + item.height);
    ctx.stroke();
  }

  function paintRow(ctx, row, y) {
    const k = scale(), many = row.start.length;
    let covered = -1, colour = "";
    ctx.font = "12px system-ui, sans-serif";
    for (let i = firstAfter(row, from); i < many && row.start[i] < until; i++) {
      const x = gutter + (row.start[i] - from) * k, right = gutter + (row.end[i] - from) * k;
      const match = matches ? matches[row.name[i]] || matches[row.detail[i]] : 1;
      if (right < covered + 0.6 && !(matches && match)) continue; // a pixel that is drawn already
      const a = Math.max(x, gutter), b = Math.min(Math.max(right, x + 1), wide), is = row.name[i];
      if (colours[is] !== colour) ctx.fillStyle = colour = colours[is];
      if (!match) ctx.globalAlpha = 0.18;
      ctx.fillRect(a, y, b - a > 3 ? b - a - 0.6 : b - a, LINE - 2);
      drawn++;
      if (b - a > 28 && match) {
        ctx.fillStyle = "#fff";
        colour = "";
        ctx.fillText(strings[is].slice(0, Math.floor((b - a - 8) / 6.4)), a + 4, y + LINE / 2 - 1, b - a - 6);
      }
      ctx.globalAlpha = 1;
      covered = b;
      if ((marked && marked.row === row && marked.i === i) || (hover && hover.row === row && hover.i === i)) {
        ctx.strokeStyle = style.ink;
        ctx.lineWidth = 2;
        ctx.strokeRect(a + 1, y, Math.max(1, b - a - 2), LINE - 2);
        ctx.lineWidth = 1;
      }
    }
  }

  function paintRuler(ctx) {
    ctx.fillStyle = style.paper;
    ctx.fillRect(0, 0, wide, RULER - 4);
    ctx.font = "12px system-ui, sans-serif";
    const rough = ((until - from) * 110) / Math.max(110, wide - gutter), power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
    ctx.strokeStyle = style.line;
    ctx.fillStyle = style.soft;
    ctx.beginPath();
    const [unit, size] = until < 1e3 ? ["ns", 1] : until < 1e6 ? ["µs", 1e3] : until < 1e9 ? ["ms", 1e6] : ["s", 1e9];
    const digits = Math.max(0, Math.ceil(-Math.log10(every / size) - 1e-9));
    for (let t = Math.max(0, Math.ceil(from / every)) * every; t < until; t += every) {
      const x = Math.round(toX(t)) + 0.5;
      ctx.moveTo(x, RULER - 10);
      ctx.lineTo(x, RULER - 4);
      ctx.fillText(`${(t / size).toFixed(digits)} ${unit}`, x + 4, RULER - 10);
    }
    ctx.moveTo(0, RULER - 3.5);
    ctx.lineTo(wide, RULER - 3.5);
    ctx.stroke();
    ctx.fillStyle = style.ink;
    ctx.font = "600 12px system-ui, sans-serif";
    for (const [step, start, length] of steps) {
      const a = Math.max(gutter, toX(start)), b = Math.min(wide, toX(start + length));
      if (b - a > 8 * Math.min(step.length, 12)) ctx.fillText(step, a + 4, 9, b - a - 6);
    }
  }

  function at(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    if (x < gutter || y < RULER) return null;
    const place = y + scroll.scrollTop, item = items.find((it) => place >= it.y && place < it.y + it.height);
    const row = item && item.rows[Math.floor((place - item.y - PAD) / LINE)];
    if (!row) return null;
    const slack = 2 / scale(), i = firstAfter(row, toTime(x) - slack);
    return i < row.start.length && row.start[i] <= toTime(x) + slack ? { row, i, item } : null;
  }

  function told({ row, i, item }) {
    const step = steps.find(([, start, length]) => row.start[i] >= start && row.start[i] < start + length);
    const facts = [duration(row.end[i] - row.start[i]), `from ${(row.start[i] / 1e6).toFixed(3)} ms`, step ? `in ${step[0]}` : "", item.lane];
    return [el("b", "", strings[row.name[i]]), el("div", "", facts.filter(Boolean).join(", ")), el("div", "soft mono", strings[row.detail[i]])];
  }

  function point(event) {
    hover = at(event);
    tip.hidden = !hover;
    if (hover) {
      tip.replaceChildren(...told(hover));
      tip.style.left = Math.max(8, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 12)) + "px";
      const below = event.clientY + 18;
      tip.style.top = (below + tip.offsetHeight < window.innerHeight ? below : event.clientY - tip.offsetHeight - 12) + "px";
    }
    draw();
  }

  let drag = null;
  scroll.addEventListener("pointerdown", (event) => {
    if (event.button || event.offsetX > wide) return;
    drag = { x: event.clientX, y: event.clientY, from, until, top: scroll.scrollTop, moved: false };
  });
  scroll.addEventListener("pointermove", (event) => {
    if (!drag) return point(event);
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    if (!drag.moved) scroll.setPointerCapture(event.pointerId);
    drag.moved = true;
    tip.hidden = true;
    scroll.classList.add("drag");
    if (event.pointerType !== "touch") scroll.scrollTop = drag.top - dy;
    look(drag.from - dx / scale(), drag.until - dx / scale());
  });
  scroll.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      marked = at(event);
      chosen.replaceChildren(...(marked ? told(marked) : []));
      draw();
    }
    drag = null;
    scroll.classList.remove("drag");
  });
  scroll.addEventListener("pointercancel", () => (drag = null));
  scroll.addEventListener("pointerleave", () => {
    hover = null;
    tip.hidden = true;
    draw();
  });
  scroll.addEventListener("dblclick", (event) => {
    const hit = at(event);
    if (!hit) return;
    const length = hit.row.end[hit.i] - hit.row.start[hit.i];
    look(hit.row.start[hit.i] - 0.1 * length, hit.row.end[hit.i] + 0.1 * length);
  });
  scroll.addEventListener("wheel", (event) => {
    if (document.activeElement !== scroll && !event.ctrlKey) return; // the page scrolls past it
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return pan((event.deltaX * unit) / (wide - gutter));
    if (event.shiftKey) return void (scroll.scrollTop += event.deltaY * unit);
    zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY * unit)) * 0.002), event.clientX - canvas.getBoundingClientRect().left);
  }, { passive: false });
  scroll.addEventListener("scroll", draw);
  const keys = {
    "+": () => zoom(0.7), "=": () => zoom(0.7), w: () => zoom(0.7), "-": () => zoom(1 / 0.7), s: () => zoom(1 / 0.7),
    ArrowLeft: () => pan(-0.2), a: () => pan(-0.2), ArrowRight: () => pan(0.2), d: () => pan(0.2),
    ArrowUp: () => (scroll.scrollTop -= 60), ArrowDown: () => (scroll.scrollTop += 60), 0: () => look(...whole),
    Escape: () => scroll.blur(),
  };
  scroll.addEventListener("keydown", (event) => {
    const act = !event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  function button(text, hint, act) {
    const made = titled(el("button", "", text), hint);
    made.onclick = act;
    bar.append(made);
  }
  function goToStep(way) {
    const middle = (from + until) / 2, near = steps.findIndex(([, start, length]) => middle < start + length);
    const now = near < 0 ? steps.length - 1 : near, one = until - from < 1.5 * steps[now][2];
    const [, start, length] = steps[Math.min(steps.length - 1, Math.max(0, one ? now + way : now))];
    look(start - 0.02 * length, start + 1.02 * length);
  }
  button("+", "zoom in", () => zoom(0.5));
  button("−", "zoom out", () => zoom(2));
  button("Fit", "all of it", () => look(...whole));
  if (steps.length) {
    button("‹ Step", "the step before", () => goToStep(-1));
    button("Step ›", "the next step", () => goToStep(1));
  }
  bar.append(find, count);
  find.oninput = () => {
    const wanted = find.value.trim().toLowerCase();
    matches = wanted ? Uint8Array.from(strings, (text) => text.toLowerCase().includes(wanted)) : null;
    let found = 0;
    if (matches) for (const item of items) for (const row of item.rows) for (let i = 0; i < row.name.length; i++) found += matches[row.name[i]] || matches[row.detail[i]];
    count.textContent = matches ? `${found.toLocaleString("en-US")} found` : "";
    draw();
  };

  const restyle = () => {
    measure();
    paint();
  };
  new ResizeObserver(restyle).observe(scroll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    restyle();
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    restyle();
  });
  return section;
}
