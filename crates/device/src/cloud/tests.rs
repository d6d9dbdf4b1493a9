use super::tables::PARAMETERS;
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
