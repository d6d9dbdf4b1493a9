//! The results as JSON: `claims`, each with its `published` figures, its `studies`, and the sentences `findings`.
//!
//! A study has a row for each run, in the order of `blkmq experiment` and with its `command`, and the `answers`: for
//! each figure the median of each alternative, and its difference from the first, with an interval. Times are in
//! nanoseconds. `partial` gives the numbers of finished `runs` and of those `planned`, if a `signal` ended the
//! measurement.

use super::measure::{Found, Measured, Repro};
use super::text::{doubts, sentences};
use crate::report::model::Partial;
use crate::report::number::date;
use serde_json::{Value, json};

/// The results as a JSON text that ends in a newline.
pub fn render(repro: &Repro) -> String {
    let mut document = json!({
        "blkmq": env!("CARGO_PKG_VERSION"),
        "command": repro.command,
        "timestamp_ms": repro.time_ms,
        "time": date(repro.time_ms),
        "machine": repro.machine,
        "warnings": doubts(repro),
        "claims": Vec::from_iter(repro.claims.iter().map(claim)),
    });
    if let Some(Partial { done, planned, signal }) = repro.partial {
        document["partial"] = json!({ "runs": done, "planned": planned, "signal": signal });
    }
    format!("{document:#}\n")
}

fn claim(measured: &Measured) -> Value {
    let mut value = json!(measured.claim);
    value["studies"] = measured.found.iter().map(study).collect();
    value["findings"] = json!(sentences(measured));
    value["notes"] = json!(measured.notes);
    value
}

fn study(found: &Found) -> Value {
    let rows = found.rows.iter().enumerate().map(|(index, row)| {
        let mut value = json!(row);
        value["command"] = json!(found.points.command(index));
        value
    });
    json!({
        "of": found.of,
        "compare": found.points.study().compare,
        "rows": Vec::from_iter(rows),
        "answers": found.questions,
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn parsed(repro: &Repro) -> Value {
        serde_json::from_str(&render(repro)).expect("JSON")
    }

    #[test]
    fn everything_is_in_it() {
        let json = parsed(&sample::both());
        let contention = &json["claims"][0];
        assert_eq!(
            (&contention["name"], &contention["title"]),
            (&json!("contention"), &json!("One lock around a scheduler does not scale"))
        );
        let study = &contention["studies"][0];
        let row = &study["rows"][3];
        let command = row["command"].as_str().expect("a command");
        assert!(command.starts_with("blkmq bench --device=null,"), "{command}");
        assert!(command.contains("--access=combining --numjobs=2 --randseed=1"), "{command}");
        assert_eq!(
            (&row["values"]["access"], &row["jobs"][0]["iops"]),
            (&json!("combining"), &json!(4e6))
        );
        let answer = &study["answers"][0]["answers"][3];
        assert_eq!((&answer["value"], &answer["median"]), (&json!("combining"), &json!(4e6)));
        assert_eq!(answer["difference"]["verdict"], "higher");
        assert_eq!(study["compare"]["names"]["combining"], "ours");
        let published = &contention["published"][0]["figures"][0];
        assert_eq!((&published["before"], &published["proposed"]), (&json!(879e3), &json!(2311e3)));
        assert!(contention["limits"][0].as_str().expect("text").contains("cores here: 2."));
        assert_eq!(json["claims"][1]["studies"][2]["of"], "device of depth 128");
        assert_eq!(
            (&json["time"], &json["machine"]["cores"]),
            (&json!("Sat Nov 21 11:16:37 2026"), &json!(2))
        );
    }

    #[test]
    fn any_text_survives() {
        let repro = sample::hostile();
        let json = parsed(&repro);
        assert_eq!(json["command"], repro.command.as_str());
        assert_eq!(json["claims"][0]["notes"][0], repro.claims[0].notes[0].as_str());
        assert_eq!(parsed(&Repro::default())["claims"], json!([]));
    }
}
