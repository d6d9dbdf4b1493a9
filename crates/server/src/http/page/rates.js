"use strict";
// Rates from two answers of /stat.json. No part of this touches the page.

const READ = 0, WRITE = 1;
const QUANTILES = [0.5, 0.99, 0.999];
const STAGES = ["queue", "device", "total"];

const sum = (list) => list.reduce((all, one) => all + one, 0);

// The figures of an export or a device over `seconds`. Times are in nanoseconds.
function flow(now, before, seconds) {
  // A count that is smaller than before began anew.
  const grown = (key) => now.figures[key].map((count, at) => Math.max(0, count - before.figures[key][at]));
  const [ios, bytes] = ["ios", "bytes"].map(grown);
  return {
    name: now.name,
    state: now.condition.state, why: now.condition.why,
    failed: Math.max(0, sum(now.errors) - sum(before.errors)) / seconds,
    ios: ios.map((count) => count / seconds),
    bytes: bytes.map((count) => count / seconds),
    latency: Object.fromEntries(STAGES.map((stage) => [stage, quantiles(now.stages[stage], before.stages[stage])])),
  };
}

// The quantiles of the reads and writes between two states of one stage: the end of the bucket, or null without any.
function quantiles(now, before) {
  const buckets = new Map();
  for (const op of [READ, WRITE]) {
    const old = new Map(before[op].buckets);
    for (const [end, count] of now[op].buckets) {
      const more = count - (old.get(end) || 0);
      if (more > 0) buckets.set(end, (buckets.get(end) || 0) + more);
    }
  }
  const sorted = [...buckets].sort((a, b) => a[0] - b[0]);
  const all = sum(sorted.map(([, count]) => count));
  return QUANTILES.map((quantile) => {
    let left = Math.max(1, Math.ceil(all * quantile));
    for (const [end, count] of sorted) {
      left -= count;
      if (left <= 0) return end;
    }
    return null;
  });
}

// The causes of missed floors.
const CAUSES = {
  ceiling: "a ceiling holds its I/Os back", slots: "its I/Os wait for a slot",
  goal: "the latency goal of another export holds its I/Os back", device: "the device holds too much",
  depth: "it has too few I/Os in flight", infeasible: "infeasible, the device does less than the floors need",
};

// What the page shows of the interval between two answers; null if there is none yet.
function rates(before, now) {
  const seconds = before ? (now.at - before.at) / 1e9 : 0;
  if (seconds <= 0) return null;
  const exports = now.exports.flatMap((one) => {
    const old = before.exports.find((it) => it.name === one.name);
    const { device, weight, connections, max, promise, goals } = one;
    // At this moment, as for devices.
    const { in_flight: flight, waiting, oldest } = one.held;
    if (!old) return [];
    const { scheduler } = now.devices[device - 1];
    const charged = Math.max(0, one.charged - old.charged);
    return [{ ...flow(one, old, seconds), flight, waiting, oldest, device, weight, connections, max, promise, goals, scheduler, charged, floor: missed(one.floor, old.floor) }];
  });
  const devices = now.devices.map((one, at) => ({
    ...flow(one, before.devices[at], seconds), number: at + 1, scheduler: one.scheduler,
    // At this moment: also those that have waited for longer than an interval.
    flight: sum(one.in_flight), waiting: one.waiting, bounded: one.bounded,
  }));
  for (const device of devices) shares(exports.filter((one) => one.device === device.number));
  return { at: now.at, seconds, exports, devices };
}

// What is said of a floor: of those seconds of the interval in which it was judged, how many it was missed in, and why.
function missed(now, before) {
  if (!now.promised) return "";
  const grown = Object.entries(now.missed).map(([cause, count]) => [cause, count - (before.missed[cause] || 0)]);
  const [cause, most] = grown.reduce((one, other) => (other[1] > one[1] ? other : one), ["", 0]);
  const floor = `floor ${now.promised}`;
  if (most === 0) return `${floor} ${now.state}`;
  return `${floor} missed in ${sum(grown.map(([, count]) => count))} of ${now.seconds - before.seconds} s: ${CAUSES[cause]}`;
}

// Adds to each export of a device its part of the device's time and of the bytes, and its part by weight among those with
// requests.
function shares(exports) {
  const bytes = sum(exports.map((one) => sum(one.bytes)));
  const charged = sum(exports.map((one) => one.charged));
  const asks = (one) => one.charged > 0 || one.flight + one.waiting > 0;
  const weight = sum(exports.filter(asks).map((one) => one.weight));
  for (const one of exports) {
    one.share = charged > 0 ? one.charged / charged : 0;
    one.part = bytes > 0 ? sum(one.bytes) / bytes : 0;
    one.due = asks(one) ? one.weight / weight : 0;
  }
}

// Which export waited behind which between two answers of /waits.json, in percent of the time.
function waited(before, now) {
  const seconds = before ? (now.at - before.at) / 1e9 : 0;
  if (seconds <= 0) return [];
  const same = (a, b) => a.device === b.device && a.export === b.export && a.behind === b.behind;
  const grown = now.waits.map((one) => {
    const old = before.waits.find((it) => same(it, one));
    return { ...one, part: (one.time - (old ? old.time : 0)) / 1e7 / seconds };
  });
  return grown.filter((one) => one.part >= 0.5);
}

// The promises to an export and how they stand, and the use of its ceilings.
function promises(one) {
  const goals = one.goals.map((it) => `goal ${it.word} ${duration(it.target)} ${it.state}${it.windows > 0 ? ` at ${duration(it.p99)}` : ""}`);
  const used = {
    rbps: one.bytes[READ], wbps: one.bytes[WRITE], bps: one.bytes[READ] + one.bytes[WRITE],
    riops: one.ios[READ], wiops: sum(one.ios) - one.ios[READ], iops: sum(one.ios),
  };
  const ceilings = one.max.split(" ").map((word) => word.split("=")).filter(([name, value]) => name in used && Number(value) > 0);
  const shown = (name, value) => (name.endsWith("iops") ? count(value) : bandwidth(value)).join(" ").trim();
  const use = ceilings.map(([name, value]) => `${name} ${shown(name, used[name])} of ${shown(name, Number(value))}`);
  return [...goals, one.floor, ...use].filter((part) => part).join("; ");
}

// The bounds on exports without a goal, for the goals of others.
function bounds(bounded) {
  const texts = {
    length: (value) => `requests of ${value / 1024} KiB`, depth: (value) => `${value} requests at the device`,
    lighter: (value) => `${bandwidth(value).join(" ")} for lighter exports`,
    equal: (value) => `${bandwidth(value).join(" ")} for exports as heavy`,
    heavier: (value) => `${bandwidth(value).join(" ")} for heavier exports`,
  };
  const all = Object.entries(bounded).map(([name, value]) => texts[name](value));
  return all.length ? `Left beside goals: ${all.join(", ")}` : "";
}

// Numbers with three digits and a unit.
function short(number, units) {
  let at = 0;
  while (number >= 999.5 && at < units.length - 1) { number /= 1000; at += 1; }
  const digits = number >= 99.95 || number === 0 ? 0 : number >= 9.995 ? 1 : 2;
  return [number.toFixed(digits), units[at]];
}
const count = (number) => number < 9999.5 ? [number.toFixed(0), ""] : short(number, ["", "k", "M"]);
const bandwidth = (bytes) => short(bytes, ["B/s", "kB/s", "MB/s", "GB/s"]);
const duration = (ns) => ns === null ? "-" : short(ns, ["ns", "\u00b5s", "ms", "s"]).join(" ");
const percent = (part) => (100 * part).toFixed(part < 0.0995 && part > 0 ? 1 : 0) + " %";
