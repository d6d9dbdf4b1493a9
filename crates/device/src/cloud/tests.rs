use super::params::PARAMETERS;
use super::*;
use crate::device::Model;
use crate::{Device, registry};

const HOST: MachineShape = MachineShape { cpus: 4, nodes: 2 };

fn device(text: &str) -> Result<Device, DeviceError> {
    registry::parse(&["cloud", text].join(if text.is_empty() { "" } else { "," }), &HOST)
}

fn params(text: &str) -> CloudParams {
    match device(text).unwrap_or_else(|e| panic!("{text}: {e}")).model {
        Model::Cloud(params) => params,
        _ => unreachable!("it was asked for by name"),
    }
}

#[test]
fn every_parameter_in_the_table_takes_its_own_default() {
    assert_eq!(params(""), CloudParams::default());
    for parameter in PARAMETERS.iter().filter(|p| !p.default.is_empty()) {
        if parameter.name != "log_size" {
            let given = params(&format!("{}={}", parameter.name, parameter.default));
            assert_eq!(given, CloudParams::default(), "{}", parameter.name);
        }
    }
}

/// No parameter is accepted and then ignored: each changes the device or leaves a note.
#[test]
fn every_parameter_in_the_table_has_an_effect() {
    for parameter in PARAMETERS {
        let other = match parameter.name {
            "preset" => "ebs-gp2",
            "log" => "1",
            "bs" | "blocksize" => "4096",
            "max_sectors" => "64",
            _ => "3",
        };
        let text = format!("{}={other}", parameter.name);
        let made = device(&text).expect("valid");
        assert!(params(&text) != CloudParams::default() || !made.notes.is_empty(), "{text}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let refusal = |text| device(text).expect_err(text).to_string();
    assert!(refusal("preset=s3").contains("azure-p20, ebs-gp3, ebs-gp2, gcp-pd"));
    assert!(refusal("iops=0").contains("1 to"));
    assert!(refusal("fast=1").contains("no parameter 'fast'"));
    assert_eq!(device("iops=9000").expect("valid").notes, ["burst_iops=3566 is raised to iops"]);
}

const START: Instant = Instant::from_nanos(1_000);

/// Returns the time in which `units` pass one by one, in seconds, rounded.
fn seconds(bucket: &mut Bucket, units: u64) -> u64 {
    let mut last = START;
    (0..units).for_each(|_| last = bucket.pass(START, 1));
    (last.since(START).0 + 500_000_000) / 1_000_000_000
}

#[test]
fn without_credits_the_rate_is_the_rate() {
    let mut bucket = Bucket::new(Allowance { rate: 100, burst: 100, credits: 0 }, Nanos::ZERO);
    assert_eq!(seconds(&mut bucket, 1_000), 10);
}

#[test]
fn a_full_bucket_lets_pass_what_it_holds() {
    let allowed = Allowance { rate: 100, burst: 100, credits: 0 };
    let mut bucket = Bucket::new(allowed, Nanos::from_millis(50));
    let waits: Vec<u64> =
        (0..8).map(|_| bucket.pass(START, 1).since(START).0 / 1_000_000).collect();
    assert_eq!(waits, [0, 0, 0, 0, 0, 10, 20, 30]);
}

#[test]
fn a_burst_lasts_until_the_credits_are_used_and_comes_back_with_rest() {
    // 900 credits at 400 per second, while 100 per second are regained: three seconds, and 1200 I/Os.
    let allowed = Allowance { rate: 100, burst: 400, credits: 900 };
    let mut bucket = Bucket::new(allowed, Nanos::ZERO);
    assert_eq!(seconds(&mut bucket, 1_200), 3);
    assert_eq!(seconds(&mut bucket, 1_000), 13);
    // After nine idle seconds, all credits are back.
    let rested = bucket.free + Nanos::from_secs(9);
    let mut last = rested;
    (0..400).for_each(|_| last = bucket.pass(rested, 1));
    assert_eq!(last.since(rested), Nanos::from_secs(1));
}
