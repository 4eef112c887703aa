// Colours of the timeline: those of a step's parts, so that one colour has one meaning on the page.

const EXCHANGE = /nccl|rccl|all-?reduce|all-?gather|reduce-?scatter|collective|horovod/i;
const RUNTIME =
  /^(Eager|TFE_|FunctionRun|Executor|Kernel|cu[A-Z]|cuda|hip|PjRt|Pjit|Execute|Thunk|Xla|Memcpy)|::/;
const WORKER = /^tf_(gpu|Compute|inter|XLA|pjrt|numa)|XLA|Eigen/i;

// Which part of a step an event is, as far as its name and its thread tell.
function partOf(text, lane, onDevice, hasDevice) {
  if (EXCHANGE.test(text)) return "collectives";
  if (onDevice) {
    if (/^(Steps|TensorFlow Name Scope)$/.test(lane)) return "other";
    return /^mem(cpy|set)/i.test(text) ? "gap_copy" : "device_compute";
  }
  if (/^tf_data/.test(lane) || /^Iterator::|Iterator\w*GetNext|^Prefetch/.test(text)) return "input";
  if (/compil/i.test(text)) return "compilation";
  const runtime = RUNTIME.test(text);
  if (WORKER.test(lane)) {
    if (hasDevice) return "kernel_launch";
    return runtime ? "other" : "host_compute";
  }
  if (runtime) return hasDevice ? "kernel_launch" : "other";
  return /^py/.test(lane) ? "gap_python" : "other";
}

function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

function luminance(colour) {
  const [r, g, b] = channels(colour).map((c) => {
    const v = c / 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Whichever of black and white can be read on it.
function textOn(colour) {
  return luminance(colour) > 0.18 ? "#000000" : "#ffffff";
}

// Three shades of a colour, by the name without its numbers: neighbours can be told apart.
function shade(colour, text) {
  const name = text.replace(/\d+/g, "");
  let hash = 7;
  for (let i = 0; i < Math.min(name.length, 80); i++) hash = (hash * 31 + name.charCodeAt(i)) | 0;
  const mix = [0, 0.22, 0.4][Math.abs(hash) % 3];
  const mixed = channels(colour).map((c) => Math.round(c + (255 - c) * mix));
  return "#" + mixed.map((c) => c.toString(16).padStart(2, "0")).join("");
}

// For each lane a colour by name; the parts that were met are noted.
function painter(strings, hasDevice, met) {
  return (lane, onDevice) => {
    const made = [];
    return (name) => {
      if (made[name] === undefined) {
        const part = partOf(strings[name], lane, onDevice, hasDevice);
        const colour = shade(data.colours[part], strings[name]);
        made[name] = { colour, ink: textOn(colour) };
        met.add(part);
      }
      return made[name];
    };
  };
}
