//! Headless Chromium, for checks of pages: it opens them, presses keys, and collects every error and warning; and the
//! page of a report in it.
//!
//! The browser is controlled over two pipes by its DevTools protocol, as Puppeteer does, so that only Debian's package
//! is needed. A browser has one tab and its own profile. A check opens an address, asks with [`eval`](Browser::eval)
//! and [`until`](Browser::until), acts with [`click`](Browser::click) and [`key`](Browser::key), and ends with
//! [`assert_quiet`](Browser::assert_quiet).
//!
//! The page of a report has no error, no request, no cut text, text readable on a telephone, values under the pointer,
//! and colours that a reader with deuteranopia can distinguish; and its pictures are for `docs`.

use super::{Folder, Outcome};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, build, root};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout};

pub(crate) const CHROMIUM: &str = "chromium";

/// No window, no automatic network requests, and no data of a user's profile.
const FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --no-default-browser-check \
                     --disable-background-networking --disable-component-update --disable-sync --disable-extensions \
                     --disable-default-apps --disable-domain-reliability --hide-scrollbars --mute-audio \
                     --disable-dev-shm-usage --password-store=basic --metrics-recording-only";

/// Seconds after which a browser is killed in any case: a check that hangs fails.
const PATIENCE: u32 = 240;

/// The interval of [`Browser::until`]: every 50 ms, for 20 s.
const LOOK_MS: u32 = 50;
const LOOKS: u32 = 400;

/// The preferences of a user, for `prefers-color-scheme` and `prefers-reduced-motion`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scheme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

/// A browser with one tab; ended, and its folder removed, when this is dropped.
pub(crate) struct Browser {
    pipe: Pipe,
    folder: PathBuf,
    session: String,
    /// Errors of the console, exceptions, refusals of the page's policy, and requests that failed.
    complaints: Vec<String>,
    /// The addresses of all requests.
    requests: Vec<String>,
    /// Pages that have been loaded.
    loads: u32,
}

impl Browser {
    /// Starts a browser; `name` is for its folder.
    ///
    /// # Errors
    /// If it does not start; the error has its own message.
    pub(crate) fn start(name: &str) -> Result<Self> {
        let folder = format!("blkmq-browser-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder)?;
        let profile = format!("--user-data-dir={}", folder.join("profile").display());
        // The protocol is spoken on descriptors 3 and 4; standard output would mix with it.
        let line = format!("exec {CHROMIUM} {FLAGS} {profile} --remote-debugging-pipe about:blank");
        let cmd = Cmd::new("sh -c").arg(format!("{line} 3<&0 4>&1 1>&2"));
        let child = cmd
            .under(&format!("timeout --kill-after=5 {PATIENCE}"))
            .piped(fs::File::create(folder.join("log"))?)?;
        let mut browser = Self {
            pipe: Pipe::new(child),
            folder,
            session: String::new(),
            complaints: Vec::new(),
            requests: Vec::new(),
            loads: 0,
        };
        browser.attach().map_err(|e| {
            let log = fs::read_to_string(browser.folder.join("log")).unwrap_or_default();
            format!("{CHROMIUM}: {e}: {}", log.lines().last().unwrap_or(""))
        })?;
        Ok(browser)
    }

    /// Finds the tab, and asks for its events.
    fn attach(&mut self) -> Result<()> {
        let targets = self.call("Target.getTargets", &json!({}))?;
        let all = targets["targetInfos"].as_array().cloned().unwrap_or_default();
        let tab = all.iter().find(|target| target["type"] == "page").ok_or("it has no tab")?;
        let wanted = json!({ "targetId": tab["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", &wanted)?;
        attached["sessionId"].as_str().ok_or("no session")?.clone_into(&mut self.session);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(())
    }

    /// Calls a method of the protocol, and collects the events that arrive before its answer.
    ///
    /// # Errors
    /// If the browser refuses, or has ended.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        let number = self.pipe.send(&self.session, method, parameters)?;
        loop {
            let message = self.pipe.receive()?;
            if message["id"] != number {
                self.hear(&message);
            } else if message["error"].is_null() {
                return Ok(message["result"].clone());
            } else {
                return Err(format!("{method}: {}", message["error"]["message"]).into());
            }
        }
    }

    fn hear(&mut self, event: &Value) {
        let of = &event["params"];
        match event["method"].as_str().unwrap_or("") {
            "Page.loadEventFired" => self.loads += 1,
            "Network.requestWillBeSent" => {
                self.requests.push(of["request"]["url"].as_str().unwrap_or("").to_owned());
            }
            "Network.loadingFailed" if of["canceled"] != true => {
                self.complaints.push(format!("a request failed: {}", of["errorText"]));
            }
            "Runtime.exceptionThrown" => {
                let details = &of["exceptionDetails"];
                self.complaints.push(format!("{} {}", details["text"], details["exception"]));
            }
            "Runtime.consoleAPICalled"
                if matches!(of["type"].as_str(), Some("error" | "assert" | "warning")) =>
            {
                self.complaints.push(format!("console: {}", of["args"]));
            }
            // Refusals of the page's policy are among them.
            "Log.entryAdded"
                if matches!(of["entry"]["level"].as_str(), Some("error" | "warning")) =>
            {
                self.complaints.push(format!("log: {}", of["entry"]["text"]));
            }
            _ => {}
        }
    }

    /// Opens an address, and waits until the page is loaded.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) fn open(&mut self, address: &str) -> Result<()> {
        let before = self.loads;
        let opened = self.call("Page.navigate", &json!({ "url": address }))?;
        if let Some(error) = opened["errorText"].as_str() {
            return Err(format!("{address}: {error}").into());
        }
        // Only the part after the # differs, so no page was loaded.
        if opened["loaderId"].is_null() {
            self.call("Page.reload", &json!({}))?;
        }
        while self.loads == before {
            let event = self.pipe.receive()?;
            self.hear(&event);
        }
        Ok(())
    }

    /// The value of an expression of JavaScript in the page, waited for if it is a promise.
    ///
    /// # Errors
    /// If it throws.
    pub(crate) fn eval(&mut self, expression: &str) -> Result<Value> {
        let wanted =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let done = self.call("Runtime.evaluate", &wanted)?;
        let thrown = &done["exceptionDetails"];
        if thrown.is_null() {
            return Ok(done["result"]["value"].clone());
        }
        Err(format!("{expression}: {} {}", thrown["text"], thrown["exception"]["description"])
            .into())
    }

    /// Waits until an expression is true, and returns its value.
    ///
    /// # Errors
    /// If it is not true after some seconds, or throws.
    pub(crate) fn until(&mut self, expression: &str) -> Result<Value> {
        let script = format!(
            "(async () => {{ for (let n = 0; n < {LOOKS}; n += 1) {{ const found = ({expression}); \
             if (found) return found; await new Promise((go) => setTimeout(go, {LOOK_MS})); }} return null; }})()"
        );
        match self.eval(&script)? {
            Value::Null => Err(format!("it never came: {expression}").into()),
            found => Ok(found),
        }
    }

    /// Clicks on the middle of the element that a CSS selector finds, where a user would click.
    ///
    /// # Errors
    /// If there is no such element, or another one covers it.
    pub(crate) fn click(&mut self, selector: &str) -> Result<()> {
        let selector = json!(selector);
        let place = self.eval(&format!(
            "(() => {{ const it = document.querySelector({selector}); if (!it) return 'there is no ' + {selector}; \
             it.scrollIntoView({{ block: 'center', behavior: 'instant' }}); const box = it.getBoundingClientRect(); \
             const [x, y] = [box.x + box.width / 2, box.y + box.height / 2]; \
             const top = document.elementFromPoint(x, y); \
             return it.contains(top) ? {{ x, y }} : {selector} + ' is covered'; }})()"
        ))?;
        if let Some(why) = place.as_str() {
            return Err(why.into());
        }
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": place["x"], "y": place["y"], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &event)?;
        }
        Ok(())
    }

    /// Presses and releases a key: a character, or a name of [`NAMED`].
    ///
    /// # Errors
    /// If there is no such key.
    pub(crate) fn key(&mut self, name: &str) -> Result<()> {
        for event in press(name)? {
            self.call("Input.dispatchKeyEvent", &event)?;
        }
        Ok(())
    }

    /// The page is as wide and high as this, in pixels of CSS.
    ///
    /// # Errors
    /// If the browser has ended.
    pub(crate) fn size(&mut self, width: u32, height: u32) -> Result<()> {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size).map(drop)
    }

    /// Emulates a user who prefers this scheme, and no motion.
    ///
    /// # Errors
    /// If the browser has ended.
    pub(crate) fn prefer(&mut self, scheme: Scheme) -> Result<()> {
        let scheme = if scheme == Scheme::Dark { "dark" } else { "light" };
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features })).map(drop)
    }

    /// Writes the visible page as a PNG.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn screenshot(&mut self, file: &Path) -> Result<()> {
        let shot = self.call("Page.captureScreenshot", &json!({ "format": "png" }))?;
        let text = self.folder.join("shot");
        fs::write(&text, shot["data"].as_str().ok_or("no picture")?)?;
        let decode = format!("base64 --decode '{}' >'{}'", text.display(), file.display());
        Cmd::new("sh -c").arg(decode).output().map(drop)
    }

    /// The addresses of all requests so far.
    pub(crate) fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Checks that the page reported no error or warning so far, and that every request went to an address that begins
    /// with `home`.
    ///
    /// # Errors
    /// Otherwise.
    pub(crate) fn assert_quiet(&mut self, home: &str) -> Result<()> {
        // Events that were sent before the answer to this are heard with it.
        self.eval("0")?;
        if let Some(away) = self
            .requests
            .iter()
            .find(|request| !request.starts_with(home) && !request.starts_with("data:"))
        {
            return Err(format!("the page asks elsewhere: {away}").into());
        }
        match self.complaints.first() {
            Some(first) => {
                Err(format!("{} complaints, the first: {first}", self.complaints.len()).into())
            }
            None => Ok(()),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.pipe.close();
        // A leftover folder does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A page that is in order, and acts on clicks and keys.
const GOOD: &str = "<!doctype html><html lang=en><title>good</title><link rel=icon href='data:,'>\
    <style>body{background:#fff}@media(prefers-color-scheme:dark){body{background:#000}}</style>\
    <button id=b>push</button><input id=i><script>b.onclick=()=>{document.title='pushed'}</script>";

/// A page that violates its own policy, and throws.
const BAD: &str = "<!doctype html><html lang=en><title>bad</title><link rel=icon href='data:,'>\
    <meta http-equiv=Content-Security-Policy content=\"default-src 'self' 'unsafe-inline'\">\
    <script>fetch('http://127.0.0.1:9/elsewhere').catch(()=>{});nothing()</script>";

/// Clicks, types and reads work on a good page; the errors of a bad one are reported.
pub(super) fn check() -> Result<Outcome> {
    let mut browser = Browser::start("self")?;
    let file = browser.folder.join("page.html");
    let address = format!("file://{}", file.display());
    fs::write(&file, GOOD)?;
    browser.size(400, 300)?;
    browser.prefer(Scheme::Dark)?;
    browser.open(&address)?;
    browser.click("#b")?;
    browser.until("document.title === 'pushed'")?;
    for key in ["Tab", "4", "2", "Shift+Tab", "Enter"] {
        browser.key(key)?;
    }
    let seen = browser.eval(
        "[document.querySelector('#i').value, document.activeElement.id, innerWidth, \
         getComputedStyle(document.body).backgroundColor]",
    )?;
    if seen != json!(["42", "b", 400, "rgb(0, 0, 0)"]) {
        return Err(format!("the page has {seen}").into());
    }
    let shot = browser.folder.join("page.png");
    browser.screenshot(&shot)?;
    if !fs::read(&shot)?.starts_with(b"\x89PNG") {
        return Err("the screenshot is no PNG".into());
    }
    browser.prefer(Scheme::Light)?;
    if browser.eval("getComputedStyle(document.body).backgroundColor")? != "rgb(255, 255, 255)" {
        return Err("the page is dark for a user that prefers light".into());
    }
    if browser.requests().first() != Some(&address) {
        return Err(format!("{address} was opened, heard of are {:?}", browser.requests()).into());
    }
    browser.assert_quiet(&address)?;
    fs::write(&file, BAD)?;
    browser.open(&address)?;
    browser.until("document.title === 'bad'")?;
    match browser.assert_quiet(&address) {
        Ok(()) => Err("a page that throws, and asks elsewhere, is said to be quiet".into()),
        Err(_) if browser.complaints.len() >= 2 => Ok(Outcome::Passed),
        Err(error) => Err(format!("heard too little: {error}: {:?}", browser.complaints).into()),
    }
}

/// Names, their codes, and the text that they type.
const NAMED: [(&str, u32, &str); 10] = [
    ("Tab", 9, ""),
    ("Enter", 13, "\r"),
    ("Escape", 27, ""),
    ("Space", 32, " "),
    ("Home", 36, ""),
    ("End", 35, ""),
    ("ArrowLeft", 37, ""),
    ("ArrowUp", 38, ""),
    ("ArrowRight", 39, ""),
    ("ArrowDown", 40, ""),
];

/// The bit of the shift key.
const SHIFT: u32 = 8;

/// The events for key down and key up. `Shift+Tab` is a name, too.
fn press(name: &str) -> Result<[Value; 2]> {
    let (modifiers, name) = match name.strip_prefix("Shift+") {
        Some(name) => (SHIFT, name),
        None => (0, name),
    };
    let named = NAMED.iter().find(|(known, ..)| *known == name);
    let mut characters = name.chars();
    let (key, code, text) = match (named, characters.next(), characters.next()) {
        (Some((_, code, text)), ..) => (if name == "Space" { " " } else { name }, *code, *text),
        (None, Some(one), None) => (name, u32::from(one.to_ascii_uppercase()), name),
        _ => return Err(format!("there is no key {name}").into()),
    };
    let event = |kind: &str| {
        json!({
            "type": kind, "key": key, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers,
        })
    };
    let mut down = event(if text.is_empty() { "rawKeyDown" } else { "keyDown" });
    if !text.is_empty() {
        down["text"] = text.into();
    }
    Ok([down, event("keyUp")])
}

/// A browser that is a child of this process.
struct Pipe {
    child: Child,
    /// `None` when it is closed.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    /// The number of the last call.
    number: u64,
}

impl Pipe {
    /// The child's standard input and output are pipes.
    fn new(mut child: Child) -> Self {
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        Self { child, to, from, number: 0 }
    }

    /// Sends a call, and returns its number.
    ///
    /// # Errors
    /// If the browser has ended.
    fn send(&mut self, session: &str, method: &str, parameters: &Value) -> Result<u64> {
        self.number += 1;
        let mut call = json!({ "id": self.number, "method": method, "params": parameters });
        if !session.is_empty() {
            call["sessionId"] = session.into();
        }
        let mut bytes = call.to_string().into_bytes();
        bytes.push(0);
        self.to.as_mut().ok_or("the browser is closed")?.write_all(&bytes)?;
        Ok(self.number)
    }

    /// The next message: an answer, or an event.
    ///
    /// # Errors
    /// If the browser has ended.
    fn receive(&mut self) -> Result<Value> {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes)?;
        if bytes.pop() != Some(0) {
            return Err("the browser has ended".into());
        }
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Ends the browser, and waits for its end. A browser whose pipe is closed ends automatically.
    fn close(&mut self) {
        let _ = self.send("", "Browser.close", &json!({}));
        self.to = None;
        let _ = self.child.wait();
    }
}

/// Columns of pixels: a telephone, a tablet, a laptop, a screen.
const WIDTHS: [u32; 4] = [400, 800, 1280, 1920];
/// At these widths, no table has to be scrolled.
const WIDE: u32 = 1280;
/// The least height of text in a plot, in pixels.
const LEAST_TEXT: f64 = 10.0;
/// The least distance of the drawn colours of two schedulers (CIE76), as in the test of the palette; the browser
/// simulates colour blindness with its own matrices.
const LEAST_DISTANCE: f64 = 20.0;
/// The most bytes of a picture.
const MOST_BYTES: u64 = 300 << 10;

/// The commands whose pages are checked, and their special features.
const PAGES: [(&str, &str); 3] = [
    (
        "devices",
        "sim --device=disk,flash --scheduler=all --rw=randrw --bs=4k --iodepth=16 --numjobs=2 --size=1g --runtime=2 \
         --time_based",
    ),
    (
        "groups",
        "sim --device=flash --scheduler=none,bfq:low_latency=0 --group=gold:weight=300 --group=rest:weight=100 \
         --group_stats=full --rw=randread --iodepth=32 --size=1g --runtime=1 --time_based --name=a --cgroup=gold \
         --name=b --cgroup=rest",
    ),
    (
        "threads",
        "sim --device=null --scheduler=none,mq-deadline --access=combining,spin --threads=1,2,4 --rw=randwrite --bs=4k \
         --iodepth=32 --size=8m --repeat=2",
    ),
];

pub(super) fn report() -> Result<Outcome> {
    let folder = Folder::new("report-page")?;
    for (name, command) in PAGES {
        let page = format!("{name}.html");
        Cmd::new(&format!("{BLKMQ} {command} --report={page}")).output_in(folder.path())?;
        let address = format!("file://{}", folder.path().join(&page).display());
        let mut browser = Browser::start(name)?;
        for width in WIDTHS {
            looked_at(&mut browser, &address, width)
                .map_err(|e| format!("{name}, {width} px wide: {e}"))?;
        }
        for scheme in [Scheme::Light, Scheme::Dark] {
            browser.prefer(scheme)?;
            told_apart(&mut browser, &address).map_err(|e| format!("{name}, {scheme:?}: {e}"))?;
        }
    }
    Ok(Outcome::Passed)
}

/// The findings about the page at a width.
fn looked_at(browser: &mut Browser, address: &str, width: u32) -> Result<()> {
    browser.size(width, 900)?;
    browser.open(address)?;
    browser.assert_quiet(address)?;
    let page = browser.eval("document.documentElement.scrollWidth")?;
    if page.as_u64() > Some(width.into()) {
        return Err(format!("the page is {page} px wide").into());
    }
    let cut = "[...document.querySelectorAll('.scroll')].filter(it => it.scrollWidth > it.clientWidth).length";
    let cut = browser.eval(cut)?;
    if width >= WIDE && cut != 0 {
        return Err(format!("{cut} tables are cut").into());
    }
    // Beside their names, bars would have a third of a telephone's width.
    let cut = "(it => it.length ? it.filter(it => it.scrollWidth > it.clientWidth).length : 'no')([...document\
               .querySelectorAll('.rows')])";
    let cut = browser.eval(cut)?;
    if cut != 0 {
        return Err(format!("{cut} plots of rows are cut").into());
    }
    let least = "Math.min(...[...document.querySelectorAll('.plot text')].map(it => parseFloat(getComputedStyle(it)\
                 .fontSize) * it.getScreenCTM().a))";
    let least = browser.eval(least)?.as_f64().unwrap_or(0.0);
    if least < LEAST_TEXT {
        return Err(format!("text of {least:.1} px").into());
    }
    hovered(browser)
}

/// In every plot, some mark shows a figure under the pointer: it is topmost where it is drawn, and has a title.
fn hovered(browser: &mut Browser) -> Result<()> {
    let wrong = browser.eval(
        "(() => { const wrong = []; let seen = 0; \
         for (const plot of document.querySelectorAll('.plot')) { let shows = false; \
           for (const mark of plot.querySelectorAll('circle, polygon, rect')) { \
             mark.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' }); \
             const box = mark.getBoundingClientRect(); if (box.width < 1) continue; \
             const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2); \
             const title = top && top.closest('.plot svg *:has(> title)')?.querySelector(':scope > title'); \
             if (title && /[0-9]/.test(title.textContent)) { shows = true; seen += 1; break; } } \
           if (!shows) wrong.push(plot.querySelector('svg').getAttribute('aria-label')); } \
         return seen ? wrong : ['there is no plot']; })()",
    )?;
    if wrong == json!([]) {
        Ok(())
    } else {
        Err(format!("no value under the pointer in {wrong}").into())
    }
}

/// The colours of the schedulers, as they are drawn in the legend, for a reader with deuteranopia.
fn told_apart(browser: &mut Browser, address: &str) -> Result<()> {
    browser.size(WIDE, 900)?;
    browser.open(address)?;
    let places = browser.eval(
        "(scrollTo(0, 0), [...document.querySelector('.legend').querySelectorAll('svg')].filter(it => \
         it.querySelector('.fill')).map(it => { const box = it.getBoundingClientRect(); \
         return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)]; }))",
    )?;
    browser.call("Emulation.setEmulatedVisionDeficiency", &json!({ "type": "deuteranopia" }))?;
    let shot = browser.call("Page.captureScreenshot", &json!({ "format": "png" }));
    browser.call("Emulation.setEmulatedVisionDeficiency", &json!({ "type": "none" }))?;
    let shot = shot?["data"].take();
    // The page's policy forbids pictures, so another page reads the pixels.
    browser.open("about:blank")?;
    let pixels = browser.eval(&format!(
        "new Promise((done) => {{ const image = new Image(); image.onload = () => {{ \
         const canvas = document.createElement('canvas'); [canvas.width, canvas.height] = [image.width, image.height]; \
         const context = canvas.getContext('2d'); context.drawImage(image, 0, 0); \
         done({places}.map(([x, y]) => [...context.getImageData(x, y, 1, 1).data].slice(0, 3))); }}; \
         image.src = 'data:image/png;base64,' + {shot}; }})"
    ))?;
    let colours: Vec<[f64; 3]> = pixels.as_array().into_iter().flatten().filter_map(rgb).collect();
    if colours.len() < 2 {
        return Err(format!("a legend of {} colours", colours.len()).into());
    }
    for (at, one) in colours.iter().enumerate() {
        for other in &colours[..at] {
            let distance = distance(lab(*one), lab(*other));
            if distance < LEAST_DISTANCE {
                return Err(format!("{one:?} and {other:?} differ by {distance:.1}").into());
            }
        }
    }
    Ok(())
}

fn rgb(pixel: &Value) -> Option<[f64; 3]> {
    let part = |at: usize| pixel[at].as_f64();
    Some([part(0)?, part(1)?, part(2)?])
}

/// A pixel of sRGB, each part up to 255, as CIE L*a*b*.
fn lab(pixel: [f64; 3]) -> [f64; 3] {
    let [r, g, b] = pixel.map(|part| {
        let part = part / 255.0;
        if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    });
    let [x, y, z] = [
        (0.412_456 * r + 0.357_576 * g + 0.180_437 * b) / 0.950_47,
        0.212_673 * r + 0.715_152 * g + 0.072_175 * b,
        (0.019_334 * r + 0.119_192 * g + 0.950_304 * b) / 1.088_83,
    ]
    .map(|t: f64| if t > 216.0 / 24389.0 { t.cbrt() } else { (24389.0 / 27.0 * t + 16.0) / 116.0 });
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// The pictures: width, height, scheme, and the scroll position at which they begin.
const PICTURES: [(&str, u32, u32, Scheme, &str); 2] = [
    ("report-light.png", 1100, 1500, Scheme::Light, "scrollTo(0, 0)"),
    (
        "report-dark.png",
        1100,
        1100,
        Scheme::Dark,
        "document.querySelectorAll('h2')[2].scrollIntoView()",
    ),
];
/// The run that they show.
const PICTURED: &str = "sim --device=disk --scheduler=all --direct=1 --time_based --runtime=20 --group_reporting --name=reader \
    --rw=randread --bs=4k --size=1g --name=writers --new_group --rw=write --bs=128k --iodepth=64 --numjobs=4 --offset=2g \
    --offset_increment=1g --size=1g";

/// `cargo xtask screenshots`
///
/// # Errors
/// If there is no browser, or a picture is too large.
pub(crate) fn screenshots(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("{arg}? usage: cargo xtask screenshots").into());
    }
    build()?;
    let folder = Folder::new("screenshots")?;
    Cmd::new(&format!("{BLKMQ} {PICTURED} --report=page.html")).output_in(folder.path())?;
    let address = format!("file://{}", folder.path().join("page.html").display());
    let images = root().join("docs/images");
    fs::create_dir_all(&images)?;
    for (name, width, height, scheme, place) in PICTURES {
        let mut browser = Browser::start("screenshots")?;
        browser.size(width, height)?;
        browser.prefer(scheme)?;
        browser.open(&address)?;
        browser.eval(&format!("void {place}"))?;
        browser.screenshot(&images.join(name))?;
        println!("docs/images/{name}: {} bytes", size(&images.join(name))?);
    }
    Ok(())
}

fn size(picture: &Path) -> Result<u64> {
    let bytes = fs::metadata(picture)?.len();
    if bytes > MOST_BYTES {
        return Err(
            format!("{} has {bytes} bytes, more than {MOST_BYTES}", picture.display()).into()
        );
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_names_or_are_characters() {
        let [down, up] = press("Shift+Tab").unwrap();
        assert_eq!((&down["key"], &down["modifiers"]), (&json!("Tab"), &json!(8)));
        assert_eq!((&down["type"], &up["type"]), (&json!("rawKeyDown"), &json!("keyUp")));
        let [down, _] = press("7").unwrap();
        assert_eq!((&down["text"], &down["windowsVirtualKeyCode"]), (&json!("7"), &json!(55)));
        assert!(press("Nothing").is_err());
    }

    #[test]
    fn colours_have_distances() {
        let (black, white) = (lab([0.0; 3]), lab([255.0; 3]));
        assert!((distance(black, white) - 100.0).abs() < 0.1);
        assert!(distance(lab([100.0, 100.0, 100.0]), lab([101.0, 101.0, 101.0])) < 1.0);
    }

    #[test]
    fn the_pictures_are_there_and_small() {
        for (name, ..) in PICTURES {
            let picture = root().join("docs/images").join(name);
            assert!(size(&picture).unwrap() > 10_000, "{name}");
        }
    }
}
