// Numbers and times as text.

export function rate(bps) {
  if (bps >= 1e9) return `${(bps / 1e9).toFixed(3)} Gbit/s`;
  if (bps >= 1e6) return `${(bps / 1e6).toFixed(1)} Mbit/s`;
  if (bps >= 1e3) return `${(bps / 1e3).toFixed(1)} kbit/s`;
  return `${bps.toFixed(0)} bit/s`;
}
export function percent(fraction) {
  if (fraction === null || !isFinite(fraction)) return "";
  const value = fraction * 100;
  if (value === 0) return "0 %";
  return `${Math.abs(value) < 0.001 ? value.toExponential(1) : value.toPrecision(3)} %`;
}
export function si(value, unit) {
  if (value === 0) return `0 ${unit}`;
  const size = Math.abs(value);
  const [factor, prefix] = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"]].find(([f]) => size >= f) ?? [1e-12, "p"];
  return `${(value / factor).toPrecision(4)} ${prefix}${unit}`;
}
export const count = (n) => (typeof n === "number" ? n.toLocaleString("en-GB") : String(n));
export const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ");
