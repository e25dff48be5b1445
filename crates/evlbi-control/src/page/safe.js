// SafeUDP of a flow: charts of what is sent and lost by the reports, and of the rate of TCP; its notices.
import { figure, gapOf, line, some } from "./chart.js";
import { count, day, percent, rate, si } from "./format.js";

// By the number of the state; 0: none.
const STATES = ["", "start", "clear", "suspect", "overloaded", "congested", "shedding", "held", "trial", "breaker", "ended"];

export function safeCharts(flow, fine, x) {
  const isSender = Boolean(flow.status?.sending?.safe);
  if (!isSender && !flow.status?.receiving?.some((stream) => stream.safe)) return [];
  const safe = isSender ? flow.status.sending.safe : flow.status.receiving.find((stream) => stream.safe).safe;
  const common = { x, isTime: true, gap: gapOf(fine) };
  const one = (name, key, tone) => ({ name, points: line(fine, key), tone });
  const known = (key) => line(fine, key, (value) => (value > 0 ? value : null));
  const made = [figure({
    ...common, title: "Kept by SafeUDP", format: percent, min: 1,
    series: [one("sent", "kept", 0), ...(isSender ? [one("lost in the network", "loss", 1), one("lost by the receiving host", "host_loss", 2)] : [])],
    words: `State ${safe.state ?? "unknown"}${safe.mode ? `, mode ${safe.mode}` : ""}: ${percent(safe.kept)} of the data are sent. What is shed is not lost.`,
  })];
  made.push(figure({ ...common, title: "State of SafeUDP", format: (v) => STATES[v] ?? "", min: STATES.length - 1, parts: STATES.length - 1, series: [{ name: "state", points: known("state_number"), tone: 0 }], words: `Last ${safe.state ?? "unknown"}; ${count(safe.rejected)} messages were ignored so far.` }));
  if (isSender && some(fine.p)) {
    made.push(figure({ ...common, title: "Loss event rate", format: percent, min: 1e-9, series: [{ name: "p", points: known("p"), tone: 1 }], words: `p of RFC 5348, last ${percent(safe.p)}.` }));
  }
  if (isSender && some(fine.x_tcp_bps)) {
    made.push(figure({
      ...common, title: "Rate of TCP on this path", format: (v) => rate(v).replace("bit/s", ""), min: 1,
      series: [{ name: "TCP", points: known("x_tcp_bps"), tone: 1 }, one("this flow", "rate_bps", 0)],
      words: `The flow counts as ${safe.q.toPrecision(3)} TCP flows; loss event rate ${percent(safe.p)}, round-trip time ${si(safe.rtt_s, "s")}.`,
    }));
  }
  if (isSender && some(fine.rtt_s)) {
    made.push(
      figure({ ...common, title: "Round-trip time of SafeUDP", format: (v) => si(v, "s"), min: 1e-3, series: [{ name: "R", points: known("rtt_s"), tone: 0 }, one("queue", "queue_s", 1)], words: `Last ${si(safe.rtt_s, "s")}.` }),
    );
  }
  if (isSender && some(fine.q)) {
    made.push(
      figure({ ...common, title: "TCP flows that it counts as", format: (v) => v.toPrecision(3), min: 1, series: [{ name: "q", points: known("q"), tone: 0 }], words: `Last ${safe.q.toPrecision(3)}, at a loss event rate of ${percent(safe.p)}.` }),
    );
  }
  return made;
}
// Shows the notices, the latest first, and returns their number.
export function notices(list, flow) {
  const all = flow.status?.sending?.safe?.notices ?? [];
  list.replaceChildren(...all.toReversed().map((notice) => entry(flow.started + notice.at_s, notice.text)));
  return all.length;
}
// Entry of a list of events.
export function entry(at, text) {
  const item = document.createElement("li");
  const time = document.createElement("time");
  time.dateTime = new Date(at * 1000).toISOString();
  time.textContent = day(at);
  item.append(time, text);
  return item;
}
