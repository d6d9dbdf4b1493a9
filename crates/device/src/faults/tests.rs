use super::{Draw, Fate, PARAMETERS, Strike, *};
use crate::fault::Chance;
use crate::{MachineShape, ParamError, registry};
use blkmq_core::{HwQueue, IoError, Nanos, Op};

fn parse(text: &str) -> Result<(FaultsParams, Vec<String>), ParamError> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    FaultsParams::parse(&Vec::from_iter(pairs.map(|(k, v)| (k.to_owned(), v.to_owned()))))
}

fn params(text: &str) -> FaultsParams {
    parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).0
}

fn draw(text: &str) -> Draw {
    Draw::new(&params(text), HwQueue(0))
}

#[test]
fn every_parameter_in_the_table_takes_its_own_default() {
    for parameter in PARAMETERS.iter().filter(|p| !p.default.is_empty()) {
        let text = format!("{}={}", parameter.name, parameter.default);
        assert_eq!(params(&text), FaultsParams::default(), "{text}");
    }
}

/// No parameter is accepted and then ignored: each changes the device.
#[test]
fn every_parameter_in_the_table_has_an_effect() {
    for parameter in &PARAMETERS {
        let other = match parameter.name {
            "errno" | "timeout_nsec" | "late_nsec" | "space" | "times" | "seed" => "3",
            _ => "0.25",
        };
        let text = format!("{}={other}", parameter.name);
        assert_ne!(params(&text), FaultsParams::default(), "{text} was ignored");
    }
}

#[test]
fn what_has_no_effect_is_said_and_what_cannot_be_is_refused() {
    let idle = "errno=5,timeout_nsec=1,late_nsec=1,space=1,times=1,seed=1";
    assert_eq!(parse(idle).expect("possible").1.len(), 6);
    let busy = format!("{idle},error=0.1,timeout=0.1,late=0.1");
    assert_eq!(parse(&busy).expect("possible").1, [] as [&str; 0]);
    assert_eq!(parse("reorder=0.1,seed=1").expect("possible").1.len(), 0);
    for text in ["error=1.5", "late_nsec=0", "errno=0", "times=-2", "error=1:100:0:-1", "errors=1"]
    {
        let message = parse(text).expect_err(text).to_string();
        assert!(message.contains("accepted: "), "{message}");
    }
}

#[test]
fn errors_of_one_operation_win_over_errors() {
    let chance = |text: &str| params(text).errors;
    let [all, half] = ["1", "0.5"].map(|text| Chance::parse(text).expect("one"));
    assert_eq!(chance("error=1"), [all; 5]);
    assert_eq!(chance("flush_error=0.5,error=1"), [all, all, half, all, all]);
    let mut draw = draw("write_error=1");
    assert_eq!(draw.attempt(Op::Read), None);
    assert!(matches!(draw.attempt(Op::Write), Some(Strike::FailDone | Strike::FailUndone)));
}

#[test]
fn faults_strike_one_at_a_time_in_the_order_of_the_table_and_as_often_as_they_may() {
    let text = "resource=1,dev_resource=1,requeue=1,timeout=1,error=1,late=1,reorder=1,times=2";
    let mut draw = draw(text);
    let strikes = [Strike::Resource, Strike::DevResource, Strike::Requeue, Strike::Lose];
    for strike in strikes {
        assert_eq!([draw.attempt(Op::Read), draw.attempt(Op::Read)], [Some(strike); 2]);
    }
    for _ in 0..2 {
        let strike = draw.attempt(Op::Read);
        assert!(matches!(strike, Some(Strike::FailDone | Strike::FailUndone)), "{strike:?}");
    }
    assert_eq!(draw.attempt(Op::Read), None);
    let fates = [(); 5].map(|()| draw.taken());
    assert!(matches!(fates[..2], [Fate::Late(_), Fate::Late(_)]), "{fates:?}");
    assert_eq!(fates[2..], [Fate::Overtaken, Fate::Overtaken, Fate::Pass]);
}

#[test]
fn chances_are_met_on_average_and_space_is_let_through() {
    let mut draw = draw("error=0.02,late=0.5,late_nsec=10,space=100,seed=3");
    assert!((0..100).all(|_| draw.attempt(Op::Write).is_none()));
    let struck = (0..10_000).filter_map(|_| draw.attempt(Op::Write));
    let (undone, done): (Vec<_>, Vec<_>) = struck.partition(|s| *s == Strike::FailUndone);
    assert!((170..230).contains(&(undone.len() + done.len())), "{} of 200", undone.len());
    assert!(undone.len() > 70 && done.len() > 70, "half of them are done");
    assert!((0..100).all(|_| draw.taken() == Fate::Pass));
    let late = (0..1000).filter_map(|_| match draw.taken() {
        Fate::Late(by) => Some(by),
        _ => None,
    });
    let late = Vec::from_iter(late);
    assert!((430..570).contains(&late.len()), "{} of 500", late.len());
    assert_eq!((late.iter().min(), late.iter().max()), (Some(&Nanos(1)), Some(&Nanos(10))));
}

#[test]
fn the_device_inside_shows_through() {
    let host = MachineShape { cpus: 4, nodes: 1 };
    let text =
        "faults,errno=28,error=0.5,space=0,seed=1:null,submit_queues=2,log=1,rotational=1,seed=4";
    let device = registry::parse(text, &host).expect("possible");
    assert_eq!((device.shape.hw_queues, device.shape.limits.rotational), (2, true));
    assert!(device.log.is_some());
    assert_eq!(device.notes, ["seed has no effect without faults"], "the inner one's");
    assert_eq!(params("errno=28").errno, IoError::NO_SPACE);
}
