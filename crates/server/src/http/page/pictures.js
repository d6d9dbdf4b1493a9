// Pictures: what an export had and how long it took over time, with its promises and the changes of its settings, and
// which export waits behind which.

// Points that are kept of an export, and changes: an hour at a second each.
const KEPT = 3600, MARKS = 50;
const WIDE = 120, HIGH = 40;

// The history of an export. Its memory is bounded by KEPT and MARKS.
function remember(history, one, at) {
  const before = history.settings;
  history.settings = { weight: one.weight, limits: limited(one.max), promise: limited(one.promise), scheduler: one.scheduler };
  if (before) {
    for (const [name, value] of Object.entries(history.settings)) {
      if (value !== before[name]) history.marks.push({ at, text: `${name} ${value || "none"}` });
    }
  }
  history.points.push({ at, iops: sum(one.ios), p99: one.latency.total[1] });
  if (history.points.length > KEPT) history.points.shift();
  if (history.marks.length > MARKS) history.marks.shift();
}

// The words of a setting that limit or promise something.
const limited = (words) => words.split(" ").filter((word) => word && !/=(max|0)$/.test(word) && !/^(goal_takes|burst)/.test(word)).join(" ");

// The points of the last `span` seconds as [x, value], the largest of those that share a place.
function points(history, key, span, now) {
  const places = new Map();
  for (const point of history.points) {
    const x = WIDE * (1 - (now - point.at) / 1e9 / span);
    if (x < 0) continue;
    const place = Math.round(2 * x);
    const before = places.get(place);
    places.set(place, point[key] === null ? before ?? null : Math.max(before ?? 0, point[key]));
  }
  return [...places].sort((a, b) => a[0] - b[0]).map(([place, value]) => [place / 2, value]);
}

// Draws `key` of a history, with lines at the heights of `rules`, each a name and a value.
function course(svg, history, key, span, now, rules) {
  const all = points(history, key, span, now);
  const highest = Math.max(0, ...all.map(([, value]) => value ?? 0));
  const shown = rules.filter(([, value]) => value <= 4 * highest || highest === 0);
  const top = Math.max(highest, ...shown.map(([, value]) => value)) || 1;
  const y = (value) => (HIGH - 1 - (HIGH - 3) * value / top).toFixed(1);
  // A place without a value is a gap.
  const line = all.map(([x, value], at) => value === null ? "" : `${at && all[at - 1][1] !== null ? "L" : "M"}${x.toFixed(1)} ${y(value)}`).join("");
  svg.querySelector(".line").setAttribute("d", line);
  svg.querySelector(".rules").setAttribute("d", shown.map(([, value]) => `M0 ${y(value)}H${WIDE}`).join(""));
  const marks = history.marks.map(({ at }) => WIDE * (1 - (now - at) / 1e9 / span)).filter((x) => x >= 0);
  svg.querySelector(".marks").setAttribute("d", marks.map((x) => `M${x.toFixed(1)} 0V${HIGH}`).join(""));
  return highest;
}

// The lines of the first picture: the floor and the ceiling in I/Os.
function rates_promised(one) {
  const words = words_of(one);
  const both = words.iops || (words.riops && words.wiops ? words.riops + words.wiops : words.riops || words.wiops);
  return [["floor", words.reserve_iops], ["ceiling", both]].filter(([, value]) => value > 0);
}

const words_of = (one) => Object.fromEntries(`${one.max} ${one.promise}`.split(" ").map((word) => word.split("=")).map(([name, value]) => [name, Number(value)]));

function drawPictures(card, one, span, now) {
  const { history } = card;
  const time = span >= 3600 ? "hour" : `${span} s`;
  const rules = rates_promised(one);
  const iops = course(card.querySelector(".iops"), history, "iops", span, now, rules);
  write(card, "from", `IOPS, last ${time}${rules.map(([name, value]) => `, ${name} ${count(value).join("")}`).join("")}`);
  write(card, "most", `most ${count(iops).join(" ")}`);
  const goals = one.goals.filter((goal) => goal.word !== "p99_sync").map((goal) => ["goal", goal.target]);
  const p99 = course(card.querySelector(".p99"), history, "p99", span, now, goals);
  write(card, "since", `p99, last ${time}${goals.map(([name, value]) => `, ${name} ${duration(value)}`).join("")}`);
  write(card, "longest", p99 > 0 ? `most ${duration(p99)}` : "no I/O");
  const last = history.marks[history.marks.length - 1];
  write(card, "changed", last ? `changed ${Math.round((now - last.at) / 1e9)} s ago: ${last.text}` : "");
  for (const name of ["iops", "p99"]) {
    const words = name === "iops" ? ["from", "most"] : ["since", "longest"];
    card.querySelector(`.${name}`).setAttribute("aria-label", words.map((word) => field(card, word).textContent).join(", "));
  }
}

// Exports in the matrix: those that waited most.
const WAITERS = 8;

// Who waits behind whom: percent of the interval.
function drawWaits(table, waits) {
  const sums = new Map();
  for (const { export: name, part } of waits) sums.set(name, (sums.get(name) || 0) + part);
  const names = [...sums].sort((a, b) => b[1] - a[1]).slice(0, WAITERS).map(([name]) => name);
  const ahead = [...new Set(waits.filter((it) => names.includes(it.export)).map((it) => it.behind))].sort().slice(0, WAITERS);
  table.hidden = names.length === 0;
  const cell = (kind, text, part) => {
    const made = document.createElement(kind);
    made.textContent = text;
    if (part) made.style.setProperty("--part", `${Math.min(100, Math.round(part))}%`);
    return made;
  };
  const row = (cells) => { const made = document.createElement("tr"); made.append(...cells); return made; };
  const head = row([cell("th", "waits behind"), ...ahead.map((name) => cell("th", name ?? "nothing"))]);
  const rows = names.map((name) => row([cell("th", name), ...ahead.map((behind) => {
    const found = waits.find((it) => it.export === name && it.behind === behind);
    return cell("td", found ? `${found.part.toFixed(0)} %` : "", found && found.part);
  })]));
  table.querySelector("thead").replaceChildren(head);
  table.querySelector("tbody").replaceChildren(...rows);
}
