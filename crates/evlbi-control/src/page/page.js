// Web UI of an agent or of a session: polls /api/v1 once a second, and sends requests of operators.
import { figure, gapOf, line, share, some, stepOf, sum, timeAt } from "./chart.js";
import { count, day, percent, rate, si } from "./format.js";
import { entry, notices, safeCharts } from "./safe.js";

const $ = (id) => document.getElementById(id);
const KEEP = 31;
const state = { token: null, role: null, selected: null, flows: new Map(), past: new Map(), lastEvent: 0, window: 600, until: null, asked: null, failed: 0, commands: null, counters: null };

// ---- Requests

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}
async function ask(path, options = {}) {
  const headers = { authorization: `Bearer ${state.token}` };
  if (options.body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(path, {
    method: options.method ?? "GET", headers, cache: "no-store", signal: AbortSignal.timeout(15000),
    body: options.body === undefined ? undefined : JSON.stringify(options.body),
  });
  const text = await answer.text();
  if (!answer.ok) {
    let error = text;
    try { error = JSON.parse(text).error ?? text; } catch { /* not JSON: show the text */ }
    throw new Refused(answer.status, error);
  }
  if (options.isText || answer.status === 204) return text;
  return JSON.parse(text);
}
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
// Repeats a request until there is an answer, so a slow link or a busy host does not abort the work.
async function insist(asked, say) {
  for (;;) {
    try { return await asked(); } catch (error) {
      if (error instanceof Refused) throw error;
      say(`${error.message}; trying again …`);
      await pause(1000);
    }
  }
}
const flowPath = (id, more = "") => `api/v1/flows/${encodeURIComponent(id)}${more}`;

// ---- Sign-in

function begin() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  state.token = sessionStorage.getItem("token");
  if (state.token) open(); else login();
}
function login(why = "") {
  state.token = null;
  sessionStorage.removeItem("token");
  $("all").hidden = true;
  $("leave").hidden = true;
  $("login").hidden = false;
  $("login-error").textContent = why;
  $("link").textContent = "Not connected";
  $("token").focus();
}
$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = $("token").value.trim();
  $("token").value = "";
  sessionStorage.setItem("token", state.token);
  open();
});
$("leave").addEventListener("click", () => login());

async function open() {
  try {
    const about = await ask("api/v1/about");
    state.role = about.your_role;
    state.isSession = about.role === "session";
    state.counters = await ask("api/v1/counters");
    $("place").textContent = `${about.role} ${about.name}`;
    document.title = `${about.name} · evlbi`;
  } catch (error) {
    if (error.status === 401) return login(error.message);
    $("link").textContent = `No answer: ${error.message}`;
    return setTimeout(open, 2000);
  }
  $("login").hidden = true;
  $("all").hidden = false;
  $("leave").hidden = false;
  $("start").hidden = state.role !== "operate";
  if (state.role === "operate") offer().catch((error) => { $("started").textContent = error.message; });
  turn();
}

// ---- Polling

let running = false, timer = 0;
async function turn() {
  if (running || !state.token) return;
  running = true;
  clearTimeout(timer);
  const begun = performance.now();
  try {
    const [{ flows }, { events }, session] = await Promise.all([
      ask("api/v1/flows"), ask(`api/v1/events?after=${state.lastEvent}`), state.isSession ? ask("api/v1/session") : null,
    ]);
    note(flows);
    if (session) plan(session);
    list();
    tell(events);
    offerRecordings();
    if (state.flows.has(state.selected)) await detail();
    else $("detail-line").textContent = "This flow was forgotten, or its host does not answer.";
    state.failed = 0;
    $("link").textContent = `Connected, ${state.role}`;
    $("link").className = "good";
    $("clock").textContent = `${day(Date.now() / 1000)} UTC`;
  } catch (error) {
    if (error.status === 401) { running = false; return login(error.message); }
    state.failed += 1;
    $("link").textContent = `No answer (${state.failed}): ${error.message}`;
    $("link").className = "bad";
  }
  running = false;
  timer = setTimeout(turn, Math.max(100, 1000 - (performance.now() - begun)));
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });

// Totals of the sender and all streams of a flow, combined by the kind of each counter.
function totals(flow) {
  const all = {};
  for (const role of ["sending", "receiving"]) for (const part of [flow.status?.[role] ?? []].flat()) {
    join(all, state.counters[role], part);
    join(all, state.counters[`safe_${role}`], part.safe ?? {});
  }
  return all;
}
function join(all, counters, part) {
  for (const { name, kind } of counters.filter((counter) => counter.name in part)) {
    const [a, b] = [all[name], part[name]];
    if (a === undefined) all[name] = b;
    else all[name] = kind === "level" ? Math.max(a, b) : kind === "least" ? Math.min(a, b) : a + b;
  }
}
// Stores the flows, and their counters of the last half minute.
function note(flows) {
  state.flows = new Map(flows.map((flow) => [flow.id, flow]));
  for (const id of [...state.past.keys()]) if (!state.flows.has(id)) state.past.delete(id);
  for (const flow of flows) {
    const past = state.past.get(flow.id) ?? [];
    const time = flow.status?.time ?? 0;
    if (past.length === 0 || past.at(-1).time < time) past.push({ time, ...totals(flow) });
    if (past.length > KEEP) past.shift();
    state.past.set(flow.id, past);
  }
}
function lately(id) {
  const past = state.past.get(id) ?? [];
  const [first, last] = [past[0], past.at(-1)];
  if (!last) return null;
  const base = past.length > 1 ? first : {};
  const delta = (key) => (last[key] ?? 0) - (base[key] ?? 0);
  const share = (part, whole) => (delta(whole) > 0 ? delta(part) / delta(whole) : null);
  // Under SafeUDP a receiver knows what its sender shed, and does not expect it.
  const shed = last.offered === undefined && last.sender_shed !== undefined ? delta("sender_shed") / (delta("sender_shed") + delta("expected") || 1) : share("shed", "offered");
  return {
    lost: share("lost", "expected"), host: last.offered ? share("not_sent", "offered") : share("host_lost", "expected"),
    network: share("network_lost", "expected"), shed,
  };
}
const rateOf = (flow) => totals(flow).rate_bps ?? 0;

function stateOf(flow) {
  if (flow.state !== "ended") return [flow.state, flow.state === "running" ? "good" : "warn"];
  const good = ["finished", "stopped"].includes(flow.end?.outcome);
  return [flow.end?.outcome === "full" ? "disk full" : flow.end?.outcome ?? "ended", good ? "soft" : "bad"];
}

// ---- The session: its state and its plan

function cells(table, rows) {
  const body = $(table).tBodies[0];
  $(table).parentElement.hidden = rows.length === 0;
  while (body.rows.length > rows.length) body.lastChild.remove();
  rows.forEach((texts, place) => {
    const row = body.rows[place] ?? body.insertRow();
    texts.forEach((text, column) => {
      const cell = row.cells[column] ?? row.insertCell();
      const isNumber = $(table).tHead.rows[0].cells[column].classList.contains("n");
      if (isNumber) cell.className = "n";
      cell.dataset.name = $(table).tHead.rows[0].cells[column].textContent;
      if (cell.textContent !== text) cell.textContent = text;
    });
  });
}
function lasting(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 100) return `${whole} s`;
  if (whole < 6000) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}
function plan(session) {
  const now = Date.now() / 1000;
  const isHeld = session.state === "held";
  $("session").hidden = false;
  $("session-title").textContent = `Session ${session.run}`;
  const far = session.scans.map((scan) => {
    if (scan.starts === null) return "waiting for Begin";
    if (session.state === "over" || now >= scan.starts + scan.lasts_s) return "finished";
    if (now >= scan.starts) return `running, ${lasting(scan.starts + scan.lasts_s - now)} left`;
    return `in ${lasting(scan.starts - now)}`;
  });
  const words = { held: "Waiting for Begin.", running: "Running.", ending: "Ending.", over: "Finished." };
  $("session-line").textContent = words[session.state];
  $("begin").hidden = state.role !== "operate" || !isHeld;
  $("end").hidden = state.role !== "operate" || session.state !== "running";
  cells("scans", session.scans.map((scan, place) => [
    scan.name, scan.starts === null ? `${lasting(scan.after_s)} after Begin` : day(scan.starts), lasting(scan.lasts_s), far[place],
  ]));
  cells("to-come", session.flows.map((flow) => [
    flow.id, flow.host, flow.command, flow.why_not ? `not started: ${flow.why_not}` : flow.starts === null ? "" : day(flow.starts),
  ]));
  const silent = Object.entries(session.silent);
  $("silent").hidden = silent.length === 0;
  $("silent").replaceChildren(...silent.map(([host, why]) => {
    const item = document.createElement("li");
    item.className = "bad";
    item.textContent = `${host} does not answer: ${why}`;
    return item;
  }));
}
async function drive(what, said) {
  try {
    plan(await ask(`api/v1/session/${what}`, { method: "POST" }));
    $("driven").textContent = said;
  } catch (error) { $("driven").textContent = error.message; }
  turn();
}
$("begin").addEventListener("click", () => drive("begin", "Session started."));
$("end").addEventListener("click", async () => {
  if (await sure("End all flows? Senders stop first, the other flows when all data has arrived.")) drive("end", "Ending all flows.");
});

// ---- The list

const COLUMNS = ["Flow", "Host", "Command", "State", "Rate", "Lost (last 30 s)", "In host", "In network", "Shed", "Ring"];
function list() {
  const body = $("flows").tBodies[0];
  const rows = new Map([...body.rows].map((row) => [row.dataset.id, row]));
  const flows = [...state.flows.values()];
  $("no-flows").hidden = flows.length > 0;
  flows.forEach((flow, place) => {
    let row = rows.get(flow.id);
    if (!row) {
      row = document.createElement("tr");
      row.dataset.id = flow.id;
      for (const [column, name] of COLUMNS.entries()) {
        const cell = row.insertCell();
        cell.dataset.name = name;
        if (column > 3) cell.className = "n";
      }
      const button = document.createElement("button");
      button.type = "button";
      button.className = "plain";
      button.textContent = flow.id;
      button.addEventListener("click", () => select(flow.id));
      row.cells[0].append(button);
    }
    rows.delete(flow.id);
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null);
    const late = lately(flow.id);
    const [word, kind] = stateOf(flow);
    const isOn = flow.state !== "ended";
    const receives = (flow.status?.receiving ?? []).length > 0;
    const texts = [
      null, flow.host, flow.command, word, isOn && flow.status ? rate(rateOf(flow)) : "",
      receives ? percent(late?.lost ?? null) : "", percent(late?.host ?? null), receives ? percent(late?.network ?? null) : "",
      percent(late?.shed ?? null), isOn && receives ? percent(totals(flow).ring_fill) : "",
    ];
    texts.forEach((text, column) => {
      if (text !== null && row.cells[column].textContent !== text) row.cells[column].textContent = text;
    });
    row.cells[3].className = kind;
    row.setAttribute("aria-current", String(flow.id === state.selected));
  });
  for (const row of rows.values()) row.remove();
  const on = flows.filter((flow) => flow.state === "running");
  const sum = (part) => on.filter(part).reduce((all, flow) => all + rateOf(flow), 0);
  $("summary").textContent = `${on.length} of ${flows.length} flows running; ${rate(sum((f) => f.status?.sending))} sent, ${rate(sum((f) => f.status?.receiving?.length))} received`;
}

// ---- One flow

async function select(id) {
  state.selected = id;
  $("detail").hidden = false;
  $("done").textContent = "";
  const flow = state.flows.get(id);
  const sending = flow?.status?.sending;
  $("rate").value = "";
  $("shed").value = sending?.shed_policy ?? "";
  for (const box of ["log-box", "result-box"]) $(box).open = false;
  list();
  await shown();
  $("detail").focus();
}
// The next poll reports errors.
const shown = () => detail().catch(() => {});

// Displayed interval: its length in seconds, and its end (null: now).
const now = () => Math.floor(Date.now() / 1000);
const last = () => state.until ?? now();
function look(until, seconds) {
  [state.until, state.window] = [until < now() ? Math.round(until) : null, seconds];
  $("window").value = String(seconds);
  $("period").textContent = state.until === null ? "live" : `${day(state.until - seconds)} to ${day(state.until)} UTC`;
  // A button loses the keyboard focus when it is disabled.
  if (state.until === null && [$("later"), $("now")].includes(document.activeElement)) $("window").focus();
  $("later").disabled = $("now").disabled = state.until === null;
  shown();
}
// Keeps the middle of the interval, unless its end would be in the future.
const zoom = (middle, seconds) => look(middle + seconds / 2, seconds);
$("window").addEventListener("change", () => {
  const seconds = Number($("window").value);
  if (state.until === null) look(Infinity, seconds);
  else zoom(state.until - state.window / 2, seconds);
});
$("earlier").addEventListener("click", () => look(last() - state.window / 2, state.window));
$("later").addEventListener("click", () => look(last() + state.window / 2, state.window));
$("now").addEventListener("click", () => look(Infinity, state.window));
// Clicks on charts. Charts are recreated each second, so a pressed element may be gone at the release, and the browser sends no click.
let pressed = null;
for (const box of ["charts", "fringes"]) {
  $(box).addEventListener("pointerdown", (event) => { pressed = event; });
  $(box).addEventListener("pointerup", (event) => {
    const from = pressed;
    pressed = null;
    if (from?.pointerId !== event.pointerId || !event.isPrimary || event.button !== 0) return;
    if (Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > 8 || event.timeStamp - from.timeStamp > 500) return;
    const at = timeAt(event);
    const finer = [...$("window").options].map((option) => Number(option.value)).filter((seconds) => seconds < at?.span);
    if (finer.length > 0) zoom(at.time, Math.max(...finer));
  });
}

// Time series are requested again after each step, or after half a minute; those of the distant past only once.
const wanted = (id) => `${id} ${state.window} ${state.until}`;
async function courses(id) {
  const of = wanted(id);
  const [to, at, when] = [last(), now(), performance.now() / 1000];
  const { asked } = state;
  if (asked?.of === of && (asked.to < asked.at - 900 || when - asked.when < Math.min(30, asked.fine.step_s) - 0.5)) return asked;
  const part = (step) => ask(flowPath(id, `/course?from=${to - state.window}&to=${to}&step=${step}`));
  const fine = await part(1);
  return state.asked = { of, to, at, when, fine, means: fine.step_s < 30 ? await part(30) : null };
}

async function detail() {
  const id = state.selected;
  const [flow, { of, to, fine, means }] = await Promise.all([ask(flowPath(id)), courses(id)]);
  if (of !== wanted(state.selected)) return;
  const [word] = stateOf(flow);
  $("detail-title").textContent = `${flow.id}: ${flow.command} on ${flow.host}, ${word}`;
  $("detail-line").textContent = flow.end ? flow.end.message ?? "" : flow.status?.line ?? "";
  const isOn = flow.state !== "ended";
  const mayOperate = state.role === "operate";
  $("change").hidden = !(mayOperate && flow.state === "running" && flow.status?.sending);
  $("rearm").hidden = !(mayOperate && isOn && flow.status?.sending?.safe?.state === "breaker");
  $("stop").hidden = !(mayOperate && isOn);
  $("kill").hidden = !(mayOperate && flow.state === "stopping");
  $("forget").hidden = !(mayOperate && !isOn);
  // A live chart starts with the flow.
  const from = to - state.window;
  const seen = [state.until === null ? Math.max(from, Math.min(fine.time[0] ?? to, to - 60)) : from, to];
  $("charts").replaceChildren(...charts(fine, means, seen), ...safeCharts(flow, fine, seen));
  $("notices-box").hidden = notices($("notices"), flow) === 0;
  fringes(flow, fine, seen);
  counters(flow);
  pairs($("options"), Object.entries(flow.options).map(([name, value]) => [name, String(value)]));
}

// Coarse means are drawn bold over finer steps.
function charts(fine, means, x) {
  const common = { x, isTime: true };
  const series = (course, name, points, tone) => ({ name, points, tone, gap: gapOf(course) });
  const bold = (name, course, points, tone) => ({ ...series(course, `${name}${stepOf(course)} means`, points(course), tone), bold: true });
  const made = [];
  const peak = Math.max(0, ...fine.rate_bps);
  const mean = fine.rate_bps.length ? sum(fine.rate_bps) / fine.rate_bps.length : 0;
  made.push(figure({
    ...common, title: "Throughput", format: (v) => rate(v).replace("bit/s", ""), min: 1,
    series: [series(fine, stepOf(fine), line(fine, "rate_bps"), 0), ...(means ? [bold("", means, (course) => line(course, "rate_bps"), 3)] : [])],
    words: fine.time.length === 0 ? "No data for this period."
      : `${rate(mean)} on average, ${rate(peak)} at most (bits of data per second).`,
  }));
  if (some(fine.expected)) {
    const all = sum(fine.expected);
    made.push(figure({
      ...common, title: "Loss", format: percent, min: 1e-4,
      series: [
        series(fine, "network", share(fine, "network_lost", "expected"), 1),
        series(fine, "this host", share(fine, "host_lost", "expected"), 2),
        series(fine, "unattributed", share(fine, "unattributed", "expected"), 3),
        bold("all, ", means ?? fine, (course) => share(course, "lost", "expected"), 0),
      ],
      words: `${count(sum(fine.lost))} of ${count(all)} datagrams: ${count(sum(fine.network_lost))} in the network, ${count(sum(fine.host_lost))} in this host.`,
    }));
    made.push(figure({
      ...common, title: "Ring", format: percent, min: 0.01, series: [series(fine, "fill", line(fine, "ring_fill"))],
      words: `${percent(Math.max(0, ...fine.ring_fill))} full at most.`,
    }));
  }
  if (some(fine.offered)) {
    made.push(figure({
      ...common, title: "Shed", format: percent, min: 0.01,
      series: [
        series(fine, "shed on purpose", share(fine, "shed", "offered"), 0),
        ...(means ? [bold("", means, (course) => share(course, "shed", "offered"), 3)] : []),
        series(fine, "dropped in this host", share(fine, "host_lost", "offered"), 1),
      ],
      words: `${count(sum(fine.shed))} of ${count(sum(fine.offered))} datagrams shed, ${count(sum(fine.host_lost))} dropped in this host.`,
    }));
  }
  return made;
}

// ---- Fringes: last integration with its chart, and time series

function picture(name, profile) {
  const points = profile.amplitudes.map((value, place) => [profile.from_s + place * profile.step_s, value]);
  const [at, highest] = points.reduce((peak, point) => (point[1] > peak[1] ? point : peak));
  return figure({
    title: `${name}: amplitude against delay`, x: [points[0][0], points.at(-1)[0]], xFormat: (v) => si(v, "s"),
    format: (v) => v.toPrecision(2), min: 1e-4, series: [{ name: "amplitude", points }],
    words: `Peak of ${highest.toPrecision(3)} at ${si(at, "s")} ± ${si(profile.step_s / 2, "s")}, the resolution of the chart.`,
  });
}
function fringes(flow, course, x) {
  const box = $("fringes");
  // The last integration is shown only for the live interval.
  const baselines = new Map(state.until === null ? flow.status?.baselines?.map((baseline) => [baseline.stations.join("-"), baseline]) : []);
  const parts = [];
  for (const name of new Set([...baselines.keys(), ...Object.keys(course.baselines)])) {
    const title = document.createElement("h3");
    title.textContent = `Baseline ${name}`;
    const row = document.createElement("div");
    row.className = "charts";
    parts.push(title);
    const baseline = baselines.get(name);
    if (baseline) {
      const [a, b] = baseline.lost;
      // Steps of shedding contain each other: both stations have what the one that sheds more keeps.
      const [c, d] = baseline.shed;
      const expected = (1 - a) * (1 - b) * (1 - Math.max(c, d));
      const sheds = c + d > 0 ? ` and from what they shed (${percent(c)}, ${percent(d)})` : "";
      const numbers = document.createElement("dl");
      pairs(numbers, [
        ["Amplitude", `${baseline.amplitude.toPrecision(4)} (correlation coefficient)`],
        ["SNR", `${baseline.snr.toFixed(1)}${baseline.false_alarm > 1e-3 ? ", no fringe" : ""}`],
        ["Delay", `${si(baseline.delay_s, "s")} ± ${si(baseline.delay_error_s, "s")}`],
        ["Weight", `${baseline.weight.toFixed(4)}, ${expected.toFixed(4)} expected from the losses of its stations (${percent(a)}, ${percent(b)})${sheds}`],
        ["SNR loss", percent(baseline.snr_loss)],
        ["Integration", baseline.start],
      ]);
      parts.push(numbers);
      if (baseline.profile.amplitudes.length > 1) row.append(picture(name, baseline.profile));
    }
    const past = course.baselines[name];
    if (past) {
      const of = (key) => past.time.map((time, place) => [time, past[key][place]]);
      const chart = (title, key, format, more) => figure({
        title: `${name}: ${title}`, x, isTime: true, gap: Math.max(65, gapOf(course)), format, min: 1e-4, series: [{ name: key, points: of(key) }],
        words: past[key].length ? `Last ${format(past[key].at(-1))}.` : "", ...more,
      });
      row.append(
        chart("amplitude", "amplitude", (v) => v.toPrecision(3)),
        chart("weight", "weight", (v) => v.toPrecision(3), { min: 1 }),
        chart("delay", "delay_s", (v) => si(v, "s"), { fit: true, min: 1e-9 }),
      );
    }
    parts.push(row);
  }
  box.replaceChildren(...parts);
}

function counters(flow) {
  const units = { bits_per_second: rate, seconds: (v) => si(v, "s"), ratio: percent, flows: (v) => v.toPrecision(3) };
  const extra = { rate_asked_bps: (v) => (v === null ? "any" : rate(v)), skew_s: units.seconds };
  const listed = (part, counters, before = "") => {
    const known = new Map(counters.map((counter) => [counter.name, counter]));
    // A code stands for a name that is listed, too.
    const isListed = ([name, value]) => (value === null || typeof value !== "object") && known.get(name)?.unit !== "code";
    return Object.entries(part).filter(isListed).map(([name, value]) => {
      const counter = known.get(name);
      const shown = (units[counter?.unit] ?? extra[name] ?? count)(value);
      return [before + name.replaceAll("_", " ").replace(" bps", ""), shown, counter?.help];
    });
  };
  const rows = ["sending", "receiving"].flatMap((role) => [flow.status?.[role] ?? []].flat().flatMap((part) => [
    ...listed(part, state.counters[role]), ...listed(part.safe ?? {}, state.counters[`safe_${role}`], "safe: "),
  ]));
  pairs($("counters"), rows);
}
function pairs(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value, help]) => {
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    term.title = help?.replaceAll("`", "") ?? "";
    text.textContent = value;
    return [term, text];
  }));
}
function fetchInto(box, target, path, isText) {
  $(box).addEventListener("toggle", async () => {
    if (!$(box).open) return;
    try {
      const found = await ask(flowPath(state.selected, path), { isText });
      $(target).textContent = isText ? found : JSON.stringify(found, null, 2);
    } catch (error) { $(target).textContent = error.message; }
  });
}
fetchInto("log-box", "log", "/log", true);
fetchInto("result-box", "result", "/result", false);
$("csv").addEventListener("click", async () => {
  const path = flowPath(state.selected, `/course.csv?from=${last() - state.window}&to=${last()}`);
  const link = document.createElement("a");
  try {
    link.href = URL.createObjectURL(new Blob([await ask(path, { isText: true })], { type: "text/csv" }));
  } catch (error) {
    $("done").textContent = error.message;
    return;
  }
  link.download = `${state.selected}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
});

// ---- Actions of operators

async function act(work, said) {
  try {
    await work();
    $("done").textContent = said;
  } catch (error) { $("done").textContent = error.message; }
  turn();
}
$("change").addEventListener("submit", (event) => {
  event.preventDefault();
  const flow = state.flows.get(state.selected);
  const body = { revision: flow.revision };
  if ($("rate").value.trim()) body.rate = $("rate").value.trim();
  const shed = $("shed").value.trim();
  if (shed && shed !== flow.status?.sending?.shed_policy) body.shed = shed;
  act(() => ask(flowPath(flow.id), { method: "PATCH", body }), `${flow.id} changed.`);
});
function sure(question) {
  $("sure-text").textContent = question;
  $("sure").returnValue = "no";
  $("sure").showModal();
  return new Promise((resolve) => $("sure").addEventListener("close", () => resolve($("sure").returnValue === "yes"), { once: true }));
}
async function end(kill) {
  const id = state.selected;
  if (!(await sure(kill ? `Kill ${id}? Data that is not written yet is lost.` : `Stop ${id}?`))) return;
  act(() => ask(flowPath(id, "/stop"), { method: "POST", body: { kill } }), kill ? `${id} killed.` : `${id} is stopping.`);
}
$("rearm").addEventListener("click", () => {
  const flow = state.flows.get(state.selected);
  const body = { revision: flow.revision, rearm: true };
  act(() => ask(flowPath(flow.id), { method: "PATCH", body }), `${flow.id} tries again.`);
});
$("stop").addEventListener("click", () => end(false));
$("kill").addEventListener("click", () => end(true));
$("forget").addEventListener("click", async () => {
  const id = state.selected;
  if (!(await sure(`Forget ${id}? Its recordings stay.`))) return;
  $("detail").hidden = true;
  state.selected = null;
  act(() => ask(flowPath(id), { method: "DELETE" }), "");
});

// The form is generated from the OpenAPI document.
async function offer() {
  const document_ = await (await fetch("api/v1/openapi.json")).json();
  const kinds = document_.components.schemas.NewFlow.oneOf;
  state.commands = new Map(kinds.map((kind) => [kind.title, kind]));
  $("command").replaceChildren(...kinds.map((kind) => new Option(kind.title)));
  fields();
}
$("command").addEventListener("change", fields);
function fields() {
  const kind = state.commands.get($("command").value);
  const needed = [], more = [];
  for (const [name, what] of Object.entries(kind.properties)) {
    if (name === "id" || name === "command") continue;
    const isNeeded = kind.required.includes(name) || ["rate", "shed", "duration", "live"].includes(name);
    (isNeeded ? needed : more).push(field(name, what, kind.required.includes(name)));
  }
  const rest = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "More options";
  rest.append(summary, ...more);
  $("fields").replaceChildren(...needed, rest);
}
function field(name, what, required) {
  const row = document.createElement("div");
  const label = document.createElement("label");
  label.textContent = name;
  label.htmlFor = `f-${name}`;
  const one = what.oneOf?.[0] ?? what;
  let input;
  if (one.enum) {
    input = document.createElement("select");
    input.append(new Option("", ""), ...one.enum.map((value) => new Option(value)));
  } else {
    input = document.createElement("input");
    if (what.type === "boolean") input.type = "checkbox";
    else if (name === "token") input.type = "password";
    input.spellcheck = false;
    input.autocomplete = "off";
  }
  input.id = `f-${name}`;
  input.name = name;
  input.required = required;
  if (what.oneOf) input.dataset.list = "yes";
  const help = document.createElement("small");
  help.id = `h-${name}`;
  help.textContent = (what.description ?? "") + (what.oneOf ? " (several values: separate with spaces)" : "");
  input.setAttribute("aria-describedby", help.id);
  row.append(label, input, help);
  return row;
}
$("start-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const flow = { id: $("name").value.trim(), command: $("command").value };
  for (const input of $("fields").querySelectorAll("input, select")) {
    if (input.type === "checkbox") { if (input.checked) flow[input.name] = true; continue; }
    const value = input.value.trim();
    if (value) flow[input.name] = input.dataset.list && value.includes(" ") ? value.split(/\s+/) : value;
  }
  try {
    const begun = await ask("api/v1/flows", { method: "POST", body: flow });
    state.flows.set(begun.id, begun);
    $("name").value = "";
    await select(begun.id);
    $("started").textContent = begun.end?.message ? `${begun.id}: ${begun.end.message}` : `${begun.id} is ${begun.state}.`;
  } catch (error) { $("started").textContent = error.message; }
});

// ---- Fringe check: correlates the end of recordings, also of growing ones

const recorded = (flow) => flow.recording && !flow.recording.includes("{") && totals(flow).bytes > 0;
function offerRecordings() {
  const box = $("recordings");
  const there = [...state.flows.values()].filter(recorded);
  $("fringe-check").hidden = state.role !== "operate" || there.length < 2;
  const known = new Set([...box.querySelectorAll("input")].map((input) => input.value));
  if (there.length === known.size && there.every((flow) => known.has(flow.id))) return;
  const ticked = new Set([...box.querySelectorAll("input:checked")].map((input) => input.value));
  box.replaceChildren(...there.map((flow) => {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.type = "checkbox";
    input.value = flow.id;
    input.checked = ticked.has(flow.id);
    label.append(input, ` ${flow.id} (${flow.host})`);
    return label;
  }));
}
$("check-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const ids = [...$("recordings").querySelectorAll("input:checked")].map((input) => input.value);
  const flows = ids.map((id) => state.flows.get(id)).filter(Boolean);
  const say = (text) => { $("checked").textContent = text; };
  if (flows.length < 2) return say("Select at least two recordings.");
  if (new Set(flows.map((flow) => flow.host)).size > 1) return say("Select recordings of one host: these are on different hosts.");
  const options = { files: flows.map((flow) => flow.recording), last: $("last").value.trim(), profiles: true };
  if ($("freq").value.trim()) options.freq = [$("freq").value.trim()];
  const id = `fringe-${new Date().toISOString().replace(/[-:.]/g, "").slice(0, 18)}`;
  try {
    say("Correlating …");
    const isMine = (flow) => flow.id === id || flow.id.endsWith(`.${id}`);
    const body = { id, host: flows[0].host, command: "correlate", ...options };
    let flow = await insist(async () => (await ask("api/v1/flows")).flows.find(isMine)
      ?? ask("api/v1/flows", { method: "POST", body }), say);
    while (flow.state !== "ended") {
      await pause(300);
      flow = await insist(() => ask(flowPath(flow.id)), say);
    }
    if (flow.end.outcome !== "finished") return say(`${flow.end.outcome}: ${flow.end.message ?? ""}`);
    const found = await insist(() => ask(flowPath(flow.id, "/result")), say);
    showFound(found);
    say(`Correlated ${found.seconds.toFixed(2)} s from ${found.start}.`);
  } catch (error) { say(error.message); }
});
function showFound(found) {
  cells("found", found.baselines.map((b) => [
    b.stations.join("-"), b.amplitude.valid.toPrecision(4), b.snr.toFixed(1), si(b.delay_s, "s"), si(b.rate_hz, "Hz"),
    b.weight.toFixed(4), b.false_alarm > 1e-3 ? "none" : b.in_lines ? "narrow lines only" : "yes",
  ]));
  $("profiles").replaceChildren(...(found.profiles ?? []).map((profile) => picture(profile.stations.join("-"), profile)));
}

// ---- Events

function tell(events) {
  if (events.length === 0) return;
  state.lastEvent = events.at(-1).id;
  const made = events.map((event) => entry(event.time, `${event.host}${event.flow ? ` ${event.flow}` : ""}: ${event.text}`));
  $("events").prepend(...made.reverse());
  while ($("events").children.length > 500) $("events").lastChild.remove();
}

begin();
