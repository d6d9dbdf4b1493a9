// The loop: asks for figures, shows them, and sends what a user changes.

// The key is in the address that the server prints, behind #, which no browser sends; it is taken out of the address bar.
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given) {
  sessionStorage.setItem("blkmq-key", given);
  history.replaceState(null, "", location.pathname);
}
const key = sessionStorage.getItem("blkmq-key");
const live = { before: null, waits: null, schedulers: [], limits: null, paused: false, timer: 0 };

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  return answer.json();
}

function state(lamp, text) {
  byId("lamp").className = `lamp ${lamp}`;
  // It is read out, so it changes only when it is another one.
  if (byId("state").textContent !== text) byId("state").textContent = text;
}

async function look() {
  clearTimeout(live.timer);
  try {
    if (!live.schedulers.length) live.schedulers = await ask("/schedulers.json");
    if (!live.limits) await limits();
    const [{ stat }, { waits }] = [await ask("/stat.json"), await ask("/waits.json")];
    const now = rates(live.before, stat);
    live.before = stat;
    if (now) now.waits = waited(live.waits, waits);
    live.waits = waits;
    if (now) {
      live.now = now;
      draw(now, live.schedulers, Number(byId("span").value));
      showLimits();
      lock();
      state("", "live");
    }
  } catch (error) {
    live.before = null;
    state("bad", `no answer from the server: ${error.message}`);
  }
  if (!live.paused) live.timer = setTimeout(look, live.now ? 1000 * byId("interval").value : 250);
}

// Limits are not among the figures: they are asked for at first and after each change.
async function limits() {
  const { list } = await ask("/list.json");
  live.limits = new Map(list.exports.map((it) => [it.name, it.max]));
}

function showLimits() {
  for (const card of document.querySelectorAll(".export")) follow(field(card, "max"), live.limits.get(card.dataset.key) || "");
}

// Without the key, nothing looks as if it could be changed.
function lock() {
  if (key) return;
  byId("locked").hidden = false;
  document.querySelectorAll(".steer :is(button, select, input)").forEach((it) => { it.disabled = true; });
}

function answer(text, bad) {
  byId("answer").className = bad ? "bad" : "";
  byId("answer").textContent = text;
}

// Sends a change, and shows what was answered. A value that was refused goes back to the one in force.
async function change(path, body, what, inputs) {
  answer(`${what} ...`, false);
  try {
    const sent = await fetch(path, {
      method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(60000),
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${key}` },
    });
    const text = await sent.text();
    if (sent.ok) {
      answer(`${what}: in force after ${duration(JSON.parse(text).done)}`, false);
    } else {
      const refused = sent.status === 422 ? JSON.parse(text).refused : text.trim();
      answer(`${what}: not changed: ${refused}`, true);
    }
  } catch (error) {
    answer(`${what}: no answer: ${error.message}`, true);
  }
  live.limits = null;
  inputs.forEach((it) => { delete it.dataset.now; });
}

byId("pause").addEventListener("click", () => {
  live.paused = !live.paused;
  byId("pause").textContent = live.paused ? "Go on" : "Pause";
  byId("pause").setAttribute("aria-pressed", String(live.paused));
  if (live.paused) {
    clearTimeout(live.timer);
    state("off", "paused");
  } else {
    live.before = null;
    live.now = null;
    look();
  }
});
byId("pace").addEventListener("submit", (event) => event.preventDefault());
// A hidden page asks for nothing.
document.addEventListener("visibilitychange", () => {
  if (live.paused) return;
  if (document.hidden) clearTimeout(live.timer);
  else { live.before = null; look(); }
});
look();
