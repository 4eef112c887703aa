// Painting the timeline: only what is in view, and nothing smaller than a pixel twice.
// `t` is the Timeline; ctx the canvas to paint on.

const LINE = 18; // the height of a row of events
const RULER = 34;
const HEAD = 30; // the heading of a device or host
const PAD = 7; // above and below the rows of a thread
const SMALL = "12px system-ui, sans-serif";
function unitOf(ns) {
  if (ns < 1e3) return ["ns", 1];
  if (ns < 1e6) return ["µs", 1e3];
  return ns < 1e9 ? ["ms", 1e6] : ["s", 1e9];
}

function paintTimeline(t, ctx) {
  const top = t.scroll.scrollTop;
  ctx.fillStyle = t.style.paper;
  ctx.fillRect(0, 0, t.wide, t.tall);
  ctx.textBaseline = "middle";
  t.drawn = 0;
  paintSteps(t, ctx);
  for (const item of t.items) {
    if (item.y + item.height <= top + RULER || item.y >= top + t.tall) continue;
    if (item.title !== undefined) paintHeading(t, ctx, item, item.y - top);
    else paintLane(t, ctx, item, item.y - top);
  }
  paintRuler(t, ctx);
}

// Every other step has a shade behind it.
function paintSteps(t, ctx) {
  ctx.fillStyle = t.style.step;
  t.steps.forEach(([, start, length], i) => {
    const left = Math.max(t.gutter, t.toX(start));
    const right = Math.min(t.wide, t.toX(start + length));
    if (right > left && i % 2 === 0) ctx.fillRect(left, 0, right - left, t.tall);
  });
}

function paintHeading(t, ctx, item, y) {
  ctx.fillStyle = t.style.faint;
  ctx.fillRect(0, y + 3, t.wide, HEAD - 6);
  ctx.fillStyle = t.style.ink;
  ctx.font = "600 14px system-ui, sans-serif";
  ctx.fillText(item.title, 10, y + HEAD / 2);
}

function paintLane(t, ctx, item, y) {
  item.rows.forEach((row, depth) => paintRow(t, ctx, row, y + PAD + depth * LINE, item.colour));
  ctx.fillStyle = t.style.paper;
  ctx.fillRect(0, y, t.gutter - 4, item.height);
  ctx.fillStyle = t.style.soft;
  ctx.font = "13px system-ui, sans-serif";
  ctx.fillText(fitted(ctx, item.lane, t.gutter - 20), 10, y + PAD + LINE / 2);
  ctx.strokeStyle = t.style.faint;
  ctx.beginPath();
  ctx.moveTo(0, y + item.height - 0.5);
  ctx.lineTo(t.wide, y + item.height - 0.5);
  ctx.moveTo(t.gutter - 4.5, y);
  ctx.lineTo(t.gutter - 4.5, y + item.height);
  ctx.stroke();
}

function fitted(ctx, text, room) {
  const short = text.slice(0, 200);
  const width = ctx.measureText(short).width;
  if (width <= room) return short;
  return short.slice(0, Math.max(1, Math.floor((short.length * room) / width) - 1)) + "…";
}

function paintRow(t, ctx, row, y, colourOf) {
  const k = t.scale();
  let covered = -1; // up to this pixel the row is painted
  let colour = "";
  ctx.font = SMALL;
  for (let i = firstAfter(row, t.from); i < row.start.length && row.start[i] < t.until; i++) {
    const x = t.gutter + (row.start[i] - t.from) * k;
    const end = t.gutter + (row.end[i] - t.from) * k;
    const matches = t.matches && t.isMatch(row, i);
    if (end < covered + 0.6 && !matches) continue;
    const left = Math.max(x, t.gutter);
    const right = Math.min(Math.max(end, x + 1), t.wide);
    const width = right - left;
    const pale = t.matches && !matches;
    const looks = colourOf(row.name[i]);
    if (looks.colour !== colour) ctx.fillStyle = colour = looks.colour;
    if (pale) ctx.globalAlpha = 0.18;
    ctx.fillRect(left, y, width > 3 ? width - 0.6 : width, LINE - 2);
    ctx.globalAlpha = 1;
    t.drawn++;
    covered = right;
    if (width > 28 && !pale) {
      ctx.fillStyle = looks.ink;
      colour = "";
      const shown = t.strings[row.name[i]].slice(0, Math.floor((width - 8) / 6.4));
      ctx.fillText(shown, left + 4, y + LINE / 2 - 1, width - 6);
    }
    if (t.isMarked(row, i)) {
      ctx.strokeStyle = t.style.ink;
      ctx.lineWidth = 2;
      ctx.strokeRect(left + 1, y, Math.max(1, width - 2), LINE - 2);
      ctx.lineWidth = 1;
    }
  }
}

function paintRuler(t, ctx) {
  ctx.fillStyle = t.style.paper;
  ctx.fillRect(0, 0, t.wide, RULER - 4);
  const rough = ((t.until - t.from) * 110) / Math.max(110, t.wide - t.gutter);
  const power = 10 ** Math.floor(Math.log10(rough));
  const every = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
  const [unit, size] = unitOf(t.until);
  const digits = Math.max(0, Math.ceil(-Math.log10(every / size) - 1e-9));
  ctx.font = SMALL;
  ctx.fillStyle = t.style.soft;
  ctx.strokeStyle = t.style.line;
  ctx.beginPath();
  for (let n = Math.max(0, Math.ceil(t.from / every)); n * every < t.until; n++) {
    const x = Math.round(t.toX(n * every)) + 0.5;
    ctx.moveTo(x, RULER - 10);
    ctx.lineTo(x, RULER - 4);
    ctx.fillText(`${((n * every) / size).toFixed(digits)} ${unit}`, x + 4, RULER - 10);
  }
  ctx.moveTo(0, RULER - 3.5);
  ctx.lineTo(t.wide, RULER - 3.5);
  ctx.stroke();
  ctx.fillStyle = t.style.ink;
  ctx.font = "600 " + SMALL;
  for (const [name, start, length] of t.steps) {
    const left = Math.max(t.gutter, t.toX(start));
    const right = Math.min(t.wide, t.toX(start + length));
    const room = right - left;
    if (room > 8 * Math.min(name.length, 12)) ctx.fillText(name, left + 4, 9, room - 6);
  }
}
