// Puts figures into the page. Every text that comes from the server becomes a text node, never markup.

const COLOURS = 8;
const KEPT = 60;
const byId = (id) => document.getElementById(id);
const field = (root, name) => root.querySelector(`[data-f="${name}"]`);
const write = (root, name, text) => { field(root, name).textContent = text; };

function figure(root, name, [number, unit]) {
  const place = field(root, name);
  const small = document.createElement("small");
  small.textContent = unit && ` ${unit}`;
  place.replaceChildren(number, small);
}

// The element of `list` for `key`, which is made from a template if it is new.
function element(list, template, key, made) {
  let found = [...list.children].find((it) => it.dataset.key === key);
  if (!found) {
    found = byId(template).content.firstElementChild.cloneNode(true);
    found.dataset.key = key;
    list.append(found);
    made(found);
  }
  return found;
}

const forget = (list, keys) => [...list.children].filter((it) => !keys.includes(it.dataset.key)).forEach((it) => it.remove());

// An input that its user is changing keeps what is typed.
function follow(input, value) {
  if (document.activeElement !== input && input.dataset.now !== String(value)) {
    input.value = value;
    input.dataset.now = value;
  }
}

function draw(now, schedulers) {
  const devices = byId("devices");
  forget(devices, now.devices.map((it) => String(it.number)));
  for (const device of now.devices) {
    const section = element(devices, "device", String(device.number), (it) => newDevice(it, device, schedulers));
    write(section, "name", device.name);
    follow(field(section, "scheduler"), device.scheduler);
    total(section, device);
    figure(section, "flight", count(device.flight));
    figure(section, "waiting", count(device.waiting));
    const exports = now.exports.filter((it) => it.device === device.number);
    section.querySelector(".who").hidden = exports.length < 2;
    drawShares(section.querySelector(".shares"), exports);
    const list = section.querySelector(".exports");
    forget(list, exports.map((it) => it.name));
    exports.forEach((one, at) => drawExport(element(list, "export", one.name, (it) => newExport(it, one, at)), one, now.seconds));
  }
}

function total(root, of) {
  figure(root, "iops", count(sum(of.ios)));
  figure(root, "read", bandwidth(of.bytes[READ]));
  figure(root, "written", bandwidth(of.bytes[WRITE]));
}

function newDevice(section, device, schedulers) {
  const select = field(section, "scheduler");
  select.replaceChildren(...schedulers.map((name) => new Option(name, name)));
  section.querySelector("form.scheduler").addEventListener("submit", (event) => {
    event.preventDefault();
    const body = { device: device.number, scheduler: select.value };
    change("/api/scheduler", body, `${device.name}: scheduler ${select.value}`, [select]);
  });
}

function newExport(card, one, at) {
  card.classList.add(`c${at % COLOURS}`);
  card.course = [];
  const [weight, max] = [field(card, "weight"), field(card, "max")];
  const what = one.name || "(the unnamed export)";
  max.id = `max-${one.device}-${at}`;
  field(card, "limits-label").htmlFor = max.id;
  card.querySelector("form.weight").addEventListener("submit", (event) => {
    event.preventDefault();
    change("/api/export", { name: one.name, weight: Number(weight.value) }, `${what}: weight ${weight.value}`, [weight]);
  });
  card.querySelector("form.limits").addEventListener("submit", (event) => {
    event.preventDefault();
    change("/api/export", { name: one.name, max: max.value }, `${what}: limits ${max.value}`, [max]);
  });
}

function drawExport(card, one, seconds) {
  write(card, "name", one.name || "(the unnamed export)");
  write(card, "connections", one.connections === 1 ? "1 connection" : `${one.connections} connections`);
  write(card, "floor", one.floor);
  total(card, one);
  figure(card, "depth", count(one.waiting + one.flight));
  figure(card, "oldest", one.waiting + one.flight > 0 ? [duration(one.oldest), ""] : ["-", ""]);
  for (const stage of STAGES) {
    one.latency[stage].forEach((time, at) => write(card, stage + at, duration(time)));
  }
  follow(field(card, "weight"), one.weight);
  card.course.push(sum(one.ios));
  if (card.course.length > KEPT) card.course.shift();
  drawCourse(card, seconds);
}

// The IOPS of the last intervals, from zero to the highest.
function drawCourse(card, seconds) {
  const all = card.course;
  const most = Math.max(...all);
  const step = 120 / (KEPT - 1);
  const first = KEPT - all.length;
  const points = all.map((value, at) => `${((first + at) * step).toFixed(1)} ${(most > 0 ? 39 - 37 * value / most : 39).toFixed(1)}`);
  const line = `M${points.join("L")}`;
  card.querySelector("path.line").setAttribute("d", line);
  card.querySelector("path.area").setAttribute("d", `${line}L120 40L${(first * step).toFixed(1)} 40Z`);
  const span = `${Math.round(all.length * seconds)} s`;
  card.querySelector(".course").setAttribute("aria-label", `IOPS of the last ${span}, at most ${count(most).join("")}`);
  write(card, "from", `IOPS, last ${span}`);
  write(card, "most", `most ${count(most).join(" ")}`);
}

function drawShares(list, exports) {
  forget(list, exports.map((it) => it.name));
  exports.forEach((one, at) => {
    const row = element(list, "share", one.name, (it) => it.classList.add(`c${at % COLOURS}`));
    write(row, "name", one.name || "(unnamed)");
    row.querySelector(".fill").setAttribute("width", (100 * one.share).toFixed(2));
    for (const line of row.querySelectorAll("line")) {
      line.setAttribute("x1", (100 * one.due).toFixed(2));
      line.setAttribute("x2", (100 * one.due).toFixed(2));
      line.style.visibility = one.due > 0 ? "visible" : "hidden";
    }
    write(row, "text", one.due > 0 ? `${percent(one.share)}, by weight ${percent(one.due)}` : "no I/O");
  });
}
