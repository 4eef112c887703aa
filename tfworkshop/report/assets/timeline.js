// The timeline: what is in view, and what wheel, mouse and keys do to that.

function duration(ns) {
  const [unit, size] = unitOf(ns);
  const value = ns / size;
  const digits = size === 1 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${unit}`;
}

function unpack([deltas, durations, names, details]) {
  const start = new Float64Array(deltas.length);
  const end = new Float64Array(deltas.length);
  let at = 0;
  for (let i = 0; i < deltas.length; i++) {
    at += deltas[i];
    start[i] = at;
    end[i] = at + durations[i];
  }
  return { start, end, name: Int32Array.from(names), detail: Int32Array.from(details) };
}

// The headings and lanes from top to bottom, each with its place; empty devices in one line.
function arrange(processes, strings, met) {
  const items = [];
  const isDevice = (process) => /(^|\s)\/device:/.test(process.name);
  const full = processes.filter((process) => process.lanes.length);
  const paint = painter(strings, full.some(isDevice), met);
  let y = RULER;
  const heading = (title) => {
    items.push({ title, y, height: HEAD, rows: [] });
    y += HEAD;
  };
  for (const process of full) {
    heading(process.name);
    for (const lane of process.lanes) {
      const rows = lane.rows.map(unpack);
      const height = rows.length * LINE + 2 * PAD;
      items.push({ lane: lane.name, y, height, rows, colour: paint(lane.name, isDevice(process)) });
      y += height;
    }
  }
  const empty = processes.filter((process) => !process.lanes.length);
  if (empty.length) {
    const names = empty.map((process) => process.name.replace("/device:", ""));
    heading("No events: " + names.join(", "));
  }
  for (const { rows, colour } of items)
    for (const row of rows) for (const name of new Set(row.name)) colour(name);
  return { items, height: y + 4 };
}

// The first event of a row that ends after a time.
function firstAfter(row, time) {
  let low = 0;
  let high = row.end.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.end[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

class Timeline {
  constructor(packed, title) {
    const { length, steps, strings, view } = packed;
    Object.assign(this, { length, steps, strings, whole: view, met: new Set() });
    Object.assign(this, arrange(packed.processes, strings, this.met));
    [this.from, this.until] = view;
    this.hover = this.marked = this.matches = this.drag = null;
    this.pending = false;
    this.style = {};
    this.build(packed, title);
    this.listen();
  }

  // --- the elements ---

  build(packed, title) {
    const left = packed.left_out
      ? ` The ${grouped(packed.left_out)} shortest are left out here; --trace keeps them.`
      : "";
    const told =
      `${grouped(packed.events)} events on the threads and streams that ran.${left} ` +
      "Click into it; then the wheel zooms, dragging pans. Keys: + − or W S zoom, ← → or A D pan, " +
      "↑ ↓ scroll, 0 fits. Double click zooms to an event.";
    this.canvas = el("canvas");
    this.room = el("div"); // makes the box scroll as far as the lanes reach
    this.scroll = el("div", "scroll", this.canvas, this.room);
    this.scroll.tabIndex = 0;
    this.scroll.setAttribute("role", "application");
    const keys = "zoom with plus and minus, pan with the arrow keys";
    this.scroll.setAttribute("aria-label", `${title}: ${keys}`);
    this.scroll.style.height = `min(${this.height + 2}px, 78vh)`;
    this.tip = el("div", "tip");
    this.tip.hidden = true;
    this.chosen = el("p", "chosen soft");
    const used = Object.keys(data.colours).filter((part) => this.met.has(part));
    const colours = legend(Object.fromEntries(used.map((part) => [part, 1])));
    const parts = [this.toolbar(), this.scroll, colours, this.chosen, this.tip];
    this.section = section("timeline", title, told, ...parts);
  }

  toolbar() {
    const bar = el("div", "tools");
    const button = (text, hint, act) => {
      const made = titled(el("button", "", text), hint);
      made.onclick = act;
      bar.append(made);
    };
    button("+", "zoom in", () => this.zoom(0.5));
    button("−", "zoom out", () => this.zoom(2));
    button("Fit", "all of it", () => this.look(...this.whole));
    if (this.steps.length) {
      button("‹ Step", "the step before", () => this.goToStep(-1));
      button("Step ›", "the next step", () => this.goToStep(1));
    }
    const find = el("input");
    const count = el("span", "soft small");
    find.type = "search";
    find.placeholder = "Find in names";
    find.oninput = () => (count.textContent = this.find(find.value.trim().toLowerCase()));
    bar.append(find, count);
    return bar;
  }

  // --- what is in view ---

  scale() {
    return (this.wide - this.gutter) / (this.until - this.from);
  }

  toX(time) {
    return this.gutter + (time - this.from) * this.scale();
  }

  toTime(x) {
    return this.from + (x - this.gutter) / this.scale();
  }

  look(from, until) {
    const span = Math.min(Math.max(until - from, 50), this.length * 1.02);
    this.from = Math.min(Math.max(from, -this.length * 0.01), this.length * 1.01 - span);
    this.until = this.from + span;
    this.draw();
  }

  zoom(factor, x = (this.gutter + this.wide) / 2) {
    const at = this.toTime(x);
    this.look(at - (at - this.from) * factor, at + (this.until - at) * factor);
  }

  pan(share) {
    const by = share * (this.until - this.from);
    this.look(this.from + by, this.until + by);
  }

  goToStep(way) {
    const middle = (this.from + this.until) / 2;
    const near = this.steps.findIndex(([, start, length]) => middle < start + length);
    const now = near < 0 ? this.steps.length - 1 : near;
    const alone = this.until - this.from < 1.5 * this.steps[now][2]; // one step fills the view
    const to = Math.min(this.steps.length - 1, Math.max(0, alone ? now + way : now));
    const [, start, length] = this.steps[to];
    this.look(start - 0.02 * length, start + 1.02 * length);
  }

  find(wanted) {
    this.matches = wanted
      ? Uint8Array.from(this.strings, (text) => text.toLowerCase().includes(wanted))
      : null;
    this.draw();
    if (!wanted) return "";
    let found = 0;
    for (const { rows } of this.items)
      for (const row of rows)
        for (let i = 0; i < row.name.length; i++) found += this.isMatch(row, i) ? 1 : 0;
    return `${grouped(found)} found`;
  }

  isMatch(row, i) {
    return this.matches[row.name[i]] || this.matches[row.detail[i]];
  }

  isMarked(row, i) {
    const is = (spot) => spot && spot.row === row && spot.i === i;
    return is(this.marked) || is(this.hover);
  }

  // --- drawing ---

  draw() {
    if (!this.pending) requestAnimationFrame(() => this.paint());
    this.pending = true;
  }

  paint() {
    this.pending = false;
    const began = performance.now();
    paintTimeline(this, this.canvas.getContext("2d"));
    const paint = (performance.now() - began).toFixed(2);
    const [from, until] = [Math.round(this.from), Math.round(this.until)];
    Object.assign(this.scroll.dataset, { from, until, drawn: this.drawn, paint });
  }

  // Sizes and colours; then all of it again.
  restyle() {
    const dpr = window.devicePixelRatio || 1;
    const css = getComputedStyle(document.documentElement);
    for (const key of ["paper", "ink", "soft", "faint", "line", "step"])
      this.style[key] = css.getPropertyValue("--" + key).trim();
    this.wide = this.scroll.clientWidth;
    this.tall = this.scroll.clientHeight;
    this.gutter = this.wide < 640 ? 96 : 200;
    this.canvas.width = this.wide * dpr;
    this.canvas.height = this.tall * dpr;
    this.canvas.style.width = this.wide + "px";
    this.canvas.style.height = this.tall + "px";
    this.room.style.height = Math.max(0, this.height - this.tall) + "px";
    this.canvas.getContext("2d").setTransform(dpr, 0, 0, dpr, 0, 0);
    this.paint();
  }

  // --- the pointer ---

  // The event under the pointer, if there is one.
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    if (x < this.gutter || y < RULER) return null;
    const place = y + this.scroll.scrollTop;
    const item = this.items.find((it) => place >= it.y && place < it.y + it.height);
    const row = item && item.rows[Math.floor((place - item.y - PAD) / LINE)];
    if (!row) return null;
    const slack = 2 / this.scale();
    const i = firstAfter(row, this.toTime(x) - slack);
    const hit = i < row.start.length && row.start[i] <= this.toTime(x) + slack;
    return hit ? { row, i, item } : null;
  }

  told({ row, i, item }) {
    const begins = row.start[i];
    const step = this.steps.find(([, start, length]) => begins >= start && begins < start + length);
    const facts = [duration(row.end[i] - begins), `from ${(begins / 1e6).toFixed(3)} ms`];
    if (step) facts.push(`in ${step[0]}`);
    facts.push(item.lane);
    const name = el("b", "", this.strings[row.name[i]]);
    return [name, el("div", "", facts.join(", ")), el("div", "soft mono", this.strings[row.detail[i]])];
  }

  point(event) {
    this.hover = this.at(event);
    this.tip.hidden = !this.hover;
    this.draw();
    if (!this.hover) return;
    this.tip.replaceChildren(...this.told(this.hover));
    const { offsetWidth, offsetHeight, style } = this.tip;
    const left = Math.min(event.clientX + 14, window.innerWidth - offsetWidth - 12);
    const below = event.clientY + 18;
    const fits = below + offsetHeight < window.innerHeight;
    style.left = Math.max(8, left) + "px";
    style.top = (fits ? below : event.clientY - offsetHeight - 12) + "px";
  }

  press(event) {
    if (event.button || event.offsetX > this.wide) return;
    const { clientX: x, clientY: y } = event;
    const { from, until } = this;
    this.drag = { x, y, from, until, top: this.scroll.scrollTop, moved: false };
  }

  move(event) {
    const drag = this.drag;
    if (!drag) return this.point(event);
    const dx = event.clientX - drag.x;
    const dy = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    if (!drag.moved) this.scroll.setPointerCapture(event.pointerId);
    drag.moved = true;
    this.tip.hidden = true;
    this.scroll.classList.add("drag");
    if (event.pointerType !== "touch") this.scroll.scrollTop = drag.top - dy;
    this.look(drag.from - dx / this.scale(), drag.until - dx / this.scale());
  }

  release(event) {
    if (this.drag && !this.drag.moved) {
      this.marked = this.at(event);
      this.chosen.replaceChildren(...(this.marked ? this.told(this.marked) : []));
      this.draw();
    }
    this.drag = null;
    this.scroll.classList.remove("drag");
  }

  leave() {
    this.hover = null;
    this.tip.hidden = true;
    this.draw();
  }

  zoomToEvent(event) {
    const hit = this.at(event);
    if (!hit) return;
    const { start, end } = hit.row;
    const margin = 0.1 * (end[hit.i] - start[hit.i]);
    this.look(start[hit.i] - margin, end[hit.i] + margin);
  }

  // Until one clicks into the timeline, the wheel scrolls the page past it.
  wheel(event) {
    if (document.activeElement !== this.scroll && !event.ctrlKey) return;
    event.preventDefault();
    const unit = [1, 16, 400][event.deltaMode];
    const [dx, dy] = [event.deltaX * unit, event.deltaY * unit];
    if (Math.abs(dx) > Math.abs(dy)) this.pan(dx / (this.wide - this.gutter));
    else if (event.shiftKey) this.scroll.scrollTop += dy;
    else {
      const x = event.clientX - this.canvas.getBoundingClientRect().left;
      this.zoom(Math.exp(0.002 * Math.max(-240, Math.min(240, dy))), x);
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      ...{ "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), w: () => this.zoom(0.7) },
      ...{ "-": () => this.zoom(1 / 0.7), s: () => this.zoom(1 / 0.7) },
      ...{ ArrowLeft: () => this.pan(-0.2), a: () => this.pan(-0.2) },
      ...{ ArrowRight: () => this.pan(0.2), d: () => this.pan(0.2) },
      ArrowUp: () => (this.scroll.scrollTop -= 60),
      ArrowDown: () => (this.scroll.scrollTop += 60),
      0: () => this.look(...this.whole),
      Escape: () => this.scroll.blur(),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  listen() {
    const on = (name, act, options) => this.scroll.addEventListener(name, act.bind(this), options);
    on("pointerdown", this.press);
    on("pointermove", this.move);
    on("pointerup", this.release);
    on("pointercancel", this.release);
    on("pointerleave", this.leave);
    on("dblclick", this.zoomToEvent);
    on("wheel", this.wheel, { passive: false });
    on("keydown", this.key);
    on("scroll", this.draw);
    new ResizeObserver(() => this.restyle()).observe(this.scroll);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.restyle());
    for (const name of ["beforeprint", "afterprint"])
      addEventListener(name, () => {
        document.documentElement.toggleAttribute("data-print", name === "beforeprint");
        this.restyle();
      });
  }
}

function timeline(packed, title) {
  return packed.processes.length
    ? new Timeline(packed, title).section
    : section("timeline", title, "No events were recorded.");
}
