//! The colours of the style sheet as seen with two kinds of colour blindness: both themes, all pairs.

/// The least distance of two colours of a theme (CIE76). About 2.3 can just be noticed side by side.
const LEAST: f64 = 20.0;
/// The least distance of the first four, which the built-in schedulers have.
const LEAST_OF_FOUR: f64 = 30.0;
/// The least contrast of a colour to the page, as for large text and graphics.
const CONTRAST: f64 = 3.0;
/// The minimum distance of two greys of the kinds of merge, which are adjacent in one bar.
const LEAST_OF_GREYS: f64 = 10.0;

type Matrix = [[f64; 3]; 3];

/// Linear sRGB as seen with all cones, without long-wave cones (protanopia), and without middle-wave cones
/// (deuteranopia): the matrices of Machado, Oliveira and Fernandes (2009), severity 1.
const SIGHTS: [(&str, Matrix); 3] = [
    ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "protanopia",
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
    ),
    (
        "deuteranopia",
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
    ),
];

/// From linear sRGB to CIE XYZ.
const XYZ: Matrix = [
    [0.412_456_4, 0.357_576_1, 0.180_437_5],
    [0.212_672_9, 0.715_152_2, 0.072_175_0],
    [0.019_333_9, 0.119_192_0, 0.950_304_1],
];

fn times(matrix: &Matrix, v: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|row| (0..3).map(|at| matrix[row][at] * v[at]).sum())
}

fn linear(hex: &str) -> [f64; 3] {
    std::array::from_fn(|at| {
        let part = &hex[1 + 2 * at..][..2];
        let value = f64::from(u8::from_str_radix(part, 16).expect("two digits")) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    })
}

fn lab(rgb: [f64; 3]) -> [f64; 3] {
    let white = [0.950_47, 1.0, 1.088_83];
    let xyz = times(&XYZ, rgb.map(|value| value.clamp(0.0, 1.0)));
    let f =
        |t: f64| if t > 216.0 / 24389.0 { t.cbrt() } else { (24389.0 / 27.0 * t + 16.0) / 116.0 };
    let [x, y, z] = std::array::from_fn(|at| f(xyz[at] / white[at]));
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

fn distance(a: [f64; 3], b: [f64; 3]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn luminance(hex: &str) -> f64 {
    times(&XYZ, linear(hex))[1]
}

/// A colour of a theme.
fn colour(sheet: &str, name: &str) -> String {
    let (_, rest) = sheet.split_once(&format!("--{name}: ")).expect(name);
    rest[..7].to_owned()
}

/// The colours of a theme, and its page.
fn theme(sheet: &str) -> (Vec<String>, String) {
    let colour = |name: &str| colour(sheet, name);
    let colours = (0..super::COLOURS).map(|at| colour(&format!("c{at}"))).collect();
    (colours, colour("page"))
}

#[test]
fn every_reader_can_tell_the_colours_apart() {
    check(include_str!("../html.css"));
}

/// The live page of a server uses the same colours, so the same checks apply.
#[test]
fn every_reader_of_the_live_page_can_tell_the_colours_apart() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/src/http/page/style.css");
    let sheet = std::fs::read_to_string(page).expect("the repository has it");
    check(&sheet);
    let (light, dark) = sheet.split_once("prefers-color-scheme: dark").expect("two themes");
    let own = include_str!("../html.css").split_once("prefers-color-scheme: dark");
    let own = own.expect("two themes");
    assert_eq!((theme(light), theme(dark)), (theme(own.0), theme(own.1)));
}

fn check(sheet: &str) {
    let (light, dark) =
        sheet.split_once("prefers-color-scheme: dark").expect("there are two themes");
    for (name, sheet) in [("light", light), ("dark", dark)] {
        let (colours, page) = theme(sheet);
        for colour in &colours {
            let (a, b) = (luminance(colour), luminance(&page));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= CONTRAST, "{name}: {colour} on {page}: {contrast:.2}");
        }
        for (sight, matrix) in &SIGHTS {
            let seen: Vec<_> = colours.iter().map(|it| lab(times(matrix, linear(it)))).collect();
            for (a, b) in (0..seen.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
                let least = if b < 4 { LEAST_OF_FOUR } else { LEAST };
                let apart = distance(seen[a], seen[b]);
                let (one, other) = (&colours[a], &colours[b]);
                assert!(apart >= least, "{name}, {sight}: {one} and {other}: {apart:.1}");
            }
        }
    }
}

#[test]
fn kinds_of_merge_have_greys_that_differ() {
    let sheet = include_str!("../html.css");
    let (light, dark) =
        sheet.split_once("prefers-color-scheme: dark").expect("there are two themes");
    for sheet in [light, dark] {
        let greys = super::KINDS.map(|name| lab(linear(&colour(sheet, name))));
        for (a, b) in (0..greys.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
            assert!(greys[a][1].abs() + greys[a][2].abs() < 1.0, "no colour");
            assert!(distance(greys[a], greys[b]) >= LEAST_OF_GREYS, "{a} and {b}");
        }
    }
}
