// Line charts over time or delay, as SVG, each with a text description below it.

const NS = "http://www.w3.org/2000/svg";
const W = 560, H = 210, LEFT = 78, RIGHT = 36, TOP = 8, BOTTOM = 24;

function node(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Ticks at multiples of 1, 2 or 5 that divide a range into about `parts` parts.
export function ticks(from, to, parts) {
  const raw = (to - from) / parts;
  if (!(raw > 0) || !isFinite(raw)) return [from];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
  const list = [];
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to + step * 1e-9; n++) list.push(n * step);
  return list;
}

// Ticks at round times.
function times(from, to) {
  const steps = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
  const step = steps.find((n) => (to - from) / n <= 6) ?? 604800;
  const list = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) list.push(t);
  return list;
}

export function clock(seconds, span) {
  const text = new Date(seconds * 1000).toISOString();
  if (span > 172800) return text.slice(5, 10);
  return span > 600 ? text.slice(11, 16) : text.slice(11, 19);
}

// Path through points, with a gap where points are missing.
function path(points, x, y, gap) {
  let line = "", before = null;
  for (const [at, value] of points) {
    if (value === null || !isFinite(value)) { before = null; continue; }
    const joins = before !== null && !(gap && at - before > gap);
    line += `${joins ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    if (!joins) line += "h0.1";
    before = at;
  }
  return line;
}

// Time under the pointer and displayed seconds of a time chart; null elsewhere.
export function timeAt(event) {
  const svg = event.target.closest("svg[data-from]");
  if (svg === null) return null;
  const box = svg.getBoundingClientRect();
  const fraction = (((event.clientX - box.left) / box.width) * W - LEFT) / (W - LEFT - RIGHT);
  const [from, to] = [Number(svg.dataset.from), Number(svg.dataset.to)];
  return fraction >= 0 && fraction <= 1 ? { time: from + fraction * (to - from), span: to - from } : null;
}

// Draws a chart: {title, series: [{name, points, gap, bold}], x: [from, to], isTime, format, xFormat, min, gap, parts, words}; min: minimum height
export function figure(chart) {
  const values = chart.series.flatMap((s) => s.points.map((p) => p[1])).filter((v) => v !== null && isFinite(v));
  const zero = chart.fit !== true;
  let low = Math.min(zero ? 0 : Infinity, ...values), high = Math.max(zero ? chart.min ?? 0 : -Infinity, ...values);
  if (!isFinite(low) || !isFinite(high)) [low, high] = [0, chart.min ?? 1];
  if (high <= low) high = low + (chart.min ?? (Math.abs(low) * 0.1 || 1));
  if (!zero) [low, high] = [low - (high - low) * 0.08, high + (high - low) * 0.08];
  const [from, to] = chart.x;
  const x = (v) => LEFT + ((v - from) / (to - from || 1)) * (W - LEFT - RIGHT);
  const y = (v) => H - BOTTOM - ((v - low) / (high - low)) * (H - TOP - BOTTOM);
  const svg = node("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${chart.title}. ${chart.words ?? ""}` });
  if (chart.isTime) [svg.dataset.from, svg.dataset.to] = [from, to];
  for (const tick of ticks(low, high, chart.parts ?? 4)) {
    svg.append(node("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(tick), y2: y(tick) }));
    svg.append(node("text", { x: LEFT - 5, y: y(tick) + 4, "text-anchor": "end" }, chart.format(tick)));
  }
  for (const tick of chart.isTime ? times(from, to) : ticks(from, to, 5)) {
    const label = chart.isTime ? clock(tick, to - from) : chart.xFormat(tick);
    svg.append(node("text", { x: x(tick), y: H - 6, "text-anchor": "middle" }, label));
    svg.append(node("line", { class: "grid", x1: x(tick), x2: x(tick), y1: H - BOTTOM, y2: H - BOTTOM + 4 }));
  }
  chart.series.forEach((series, place) => {
    const kind = `s${series.tone ?? place}${series.bold ? " bold" : ""}`;
    const shown = series.points.filter((point) => point[0] >= from && point[0] <= to);
    svg.append(node("path", { class: kind, d: path(shown, x, y, series.gap ?? chart.gap) }));
  });
  const box = document.createElement("figure");
  const words = document.createElement("figcaption");
  const title = document.createElement("b");
  title.textContent = chart.title;
  words.append(title, " ", chart.words ?? "");
  box.append(svg, words);
  if (chart.series.length > 1) {
    const key = document.createElement("ul");
    key.className = "key";
    chart.series.forEach((series, place) => {
      const item = document.createElement("li");
      const mark = node("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" });
      mark.append(node("path", { class: `s${series.tone ?? place}${series.bold ? " bold" : ""}`, d: "M0 4H26" }));
      item.append(mark, " ", series.name);
      key.append(item);
    });
    box.append(key);
  }
  return box;
}

// Time series of a flow: points of a chart, and sums.
export const line = (course, key, scale = (v) => v) => course.time.map((time, place) => [time, scale(course[key][place], place)]);
// A line has a gap where two of its steps are missing.
export const gapOf = (course) => Math.max(5, course.step_s * 2.2);
export const stepOf = (course) => (course.step_s < 60 ? `${course.step_s} s` : `${course.step_s / 60} min`);
// A fraction of fewer than 20 datagrams is not shown.
export const share = (course, part, whole) => line(course, part, (value, place) => (course[whole][place] >= 20 ? value / course[whole][place] : null));
export const some = (list) => list.some((n) => n > 0);
export const sum = (list) => list.reduce((all, n) => all + n, 0);
