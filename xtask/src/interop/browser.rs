//! Headless Chromium, for checks of pages: it opens them, presses keys, and collects every error and warning.
//!
//! It is controlled over two pipes by its DevTools protocol, as Puppeteer does, so that only Debian's package is
//! needed. A browser has one tab and its own profile. A check opens an address, asks with [`eval`](Browser::eval) and
//! [`until`](Browser::until), acts with [`click`](Browser::click) and [`key`](Browser::key), and ends with
//! [`assert_quiet`](Browser::assert_quiet).

use super::Outcome;
use crate::Result;
use crate::shell::Cmd;
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
}
