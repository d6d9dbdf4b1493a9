// Puts figures into the page. Every text that comes from the server becomes a text node, never markup.

const COLOURS = 8;
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

// States that call for a look, and those that call for an operator.
const ILL = ["share-missed", "goal-missed", "floor-missed"], BAD = ["starved", "errors", "stuck"];

// Shows how a device or an export fares.
function fares(root, one) {
  root.classList.toggle("ill", ILL.includes(one.state));
  root.classList.toggle("bad", BAD.includes(one.state));
  const why = field(root, "why");
  why.textContent = one.why && `${one.state}: ${one.why}`;
  why.hidden = !one.why;
}

function draw(now, schedulers, span) {
  const devices = byId("devices");
  forget(devices, now.devices.map((it) => String(it.number)));
  for (const device of now.devices) {
    const section = element(devices, "device", String(device.number), (it) => newDevice(it, device, schedulers));
    write(section, "name", device.name);
    follow(field(section, "scheduler"), device.scheduler);
    total(section, device);
    fares(section, device);
    write(section, "bounds", bounds(device.bounded));
    figure(section, "flight", count(device.flight));
    figure(section, "waiting", count(device.waiting));
    const exports = now.exports.filter((it) => it.device === device.number);
    section.querySelector(".who").hidden = exports.length < 2;
    drawShares(section.querySelector(".shares"), exports);
    const list = section.querySelector(".exports");
    forget(list, exports.map((it) => it.name));
    exports.forEach((one, at) => drawExport(element(list, "export", one.name, (it) => newExport(it, one, at)), one, span, now.at));
    drawWaits(section.querySelector(".waits"), now.waits.filter((it) => it.device === device.number));
  }
}

function total(root, of) {
  figure(root, "iops", count(sum(of.ios)));
  figure(root, "read", bandwidth(of.bytes[READ]));
  figure(root, "written", bandwidth(of.bytes[WRITE]));
  figure(root, "failed", of.failed > 0 && of.failed < 9.95 ? short(of.failed, [""]) : count(of.failed));
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
  card.history = { points: [], marks: [], settings: null };
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

function drawExport(card, one, span, now) {
  write(card, "name", one.name || "(the unnamed export)");
  write(card, "connections", one.connections === 1 ? "1 connection" : `${one.connections} connections`);
  write(card, "promises", promises(one));
  fares(card, one);
  total(card, one);
  figure(card, "depth", count(one.waiting + one.flight));
  figure(card, "oldest", one.waiting + one.flight > 0 ? [duration(one.oldest), ""] : ["-", ""]);
  for (const stage of STAGES) {
    one.latency[stage].forEach((time, at) => write(card, stage + at, duration(time)));
  }
  follow(field(card, "weight"), one.weight);
  remember(card.history, one, now);
  drawPictures(card, one, span, now);
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
    write(row, "text", one.due > 0 ? `${percent(one.share)}, due ${percent(one.due)}; bytes ${percent(one.part)}` : "no I/O");
    write(row, "state", one.state);
    row.classList.toggle("ill", ILL.includes(one.state));
    row.classList.toggle("bad", BAD.includes(one.state));
  });
}
