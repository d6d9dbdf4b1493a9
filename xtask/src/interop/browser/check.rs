//! Checks the driver itself: it sees the page and receives its errors.

use super::super::Outcome;
use super::{Browser, Scheme};
use crate::Result;
use serde_json::json;
use std::fs;

/// A page that is in order, and acts on clicks and keys.
const GOOD: &str = "<!doctype html><html lang=en><title>good</title><link rel=icon href='data:,'>\
    <style>body{background:#fff}@media(prefers-color-scheme:dark){body{background:#000}}</style>\
    <button id=b>push</button><input id=i><script>b.onclick=()=>{document.title='pushed'}</script>";

/// A page that violates its own policy, and throws.
const BAD: &str = "<!doctype html><html lang=en><title>bad</title><link rel=icon href='data:,'>\
    <meta http-equiv=Content-Security-Policy content=\"default-src 'self' 'unsafe-inline'\">\
    <script>fetch('http://127.0.0.1:9/elsewhere').catch(()=>{});nothing()</script>";

/// Clicks, types and reads work on a good page; the errors of a bad one are reported.
pub(in crate::interop) fn check() -> Result<Outcome> {
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
