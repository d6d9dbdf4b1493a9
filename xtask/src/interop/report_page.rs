//! The page of a report in a browser: no error, no request, no cut text, text readable on a telephone, values under the
//! pointer, and colours that a reader with deuteranopia can distinguish; and its pictures for `docs`.

use super::browser::{Browser, Scheme};
use super::{Folder, Outcome};
use crate::Result;
use crate::shell::{BLKMQ, Cmd, build, root};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

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

pub(super) fn check() -> Result<Outcome> {
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
