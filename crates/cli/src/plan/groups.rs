//! Groups as the command line describes them: `--group NAME[:KEY=VALUE,...]`, and fio's `cgroup` of a job.

use blkmq_engine::{GroupSpec, GroupTree, IoMax, Promise, weight_of_io_weight};
use blkmq_lab::workload::Job;
use blkmq_terminal::UsageError;
use blkmq_terminal::limits;

/// The keys that a group accepts.
const KEYS: &str = "weight=1-1000, io.weight=1-10000, parent=NAME, rbps, wbps, riops, wiops, bps, iops=N or max, \
     burst=1-1000, burst_length=TIME, \
     reserve_iops, reserve_bps, reserve_percent, limit_iops, limit_bps, limit_percent=N, \
     p99_read, p99_write, p99_sync=TIME, goal_takes_at_most=0-100, overcommit";
/// The default weight of a group.
const WEIGHT: u32 = 100;

/// The group that `text` describes.
///
/// # Errors
/// If the text is of another form.
pub fn parse(text: &str) -> Result<GroupSpec, UsageError> {
    let (name, pairs) = text.split_once(':').unwrap_or((text, ""));
    let mut group = GroupSpec { name: name.into(), ..GroupSpec::default() };
    for pair in pairs.split(',').filter(|pair| !pair.is_empty()) {
        let pair = if pair == "overcommit" { "overcommit=1" } else { pair };
        let (key, value) = pair.split_once('=').ok_or_else(|| unknown(pair))?;
        match key {
            word if Promise::WORDS.contains(&word) => {
                group.promise = limits::promised(group.promise, key, value)?;
            }
            "weight" => group.weight = number(pair, value)?,
            "io.weight" => {
                let weight = weight_of_io_weight(number(pair, value)?);
                group.weight = weight.map_err(|e| UsageError::new(e.to_string()))?;
            }
            "parent" => group.parent = value.into(),
            limit if IoMax::WORDS.contains(&limit) => {
                let max = limits::set(group.max, limit, value);
                group.max = max.map_err(|error| error.at(limit))?;
            }
            _ => return Err(unknown(pair)),
        }
    }
    Ok(group)
}

fn unknown(pair: &str) -> UsageError {
    UsageError::new(format!("'{pair}' says nothing about a group; accepted: {KEYS}"))
}

fn number(pair: &str, value: &str) -> Result<u32, UsageError> {
    value.parse().map_err(|_| UsageError::new(format!("{pair}: no number; accepted: {KEYS}")))
}

/// Builds the tree of the described groups, and of groups that only `jobs` name.
///
/// # Errors
/// If groups contradict each other, or a job without `cgroup_weight` is in an undescribed group although others are
/// described.
pub fn tree(mut wanted: Vec<GroupSpec>, jobs: &[Job]) -> Result<GroupTree, UsageError> {
    let described = !wanted.is_empty();
    for job in jobs {
        let Some(name) = &job.cgroup else { continue };
        let at = |e: UsageError| e.at(format!("job '{}'", job.name));
        match (wanted.iter().find(|group| group.name == *name), job.cgroup_weight) {
            (Some(group), Some(weight)) if group.weight != weight => {
                return Err(at(UsageError::new(format!(
                    "cgroup_weight={weight}, and group '{name}' has a weight of {}; accepted: one of the two",
                    group.weight
                ))));
            }
            (Some(_), _) => {}
            (None, None) if described => {
                let known = Vec::from_iter(wanted.iter().map(|group| &*group.name)).join(", ");
                return Err(at(UsageError::new(format!("no group '{name}'; accepted: {known}"))));
            }
            (None, weight) => wanted.push(GroupSpec {
                name: name.clone(),
                weight: weight.unwrap_or(WEIGHT),
                ..GroupSpec::default()
            }),
        }
    }
    GroupTree::of(wanted).map_err(|e| UsageError::new(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let group = parse(text).and_then(|group| tree(vec![group], &[]));
        group.expect_err(text).to_string()
    }

    fn job(cgroup: &str, cgroup_weight: Option<u32>) -> Job {
        Job { cgroup: Some(cgroup.into()), cgroup_weight, ..Job::default() }
    }

    #[test]
    fn a_group_is_described_by_pairs() {
        let text = "web:weight=200,parent=top,rbps=1m,wiops=500,riops=max";
        let web = parse(text).expect("right");
        assert_eq!((&*web.name, &*web.parent, web.weight), ("web", "top", 200));
        assert_eq!(web.max.to_string(), "rbps=1048576 wbps=max riops=max wiops=500");
        let burst = parse("b:iops=1k,bps=2m,burst=3,burst_length=5s").expect("right").max;
        let words =
            "rbps=max wbps=max riops=max wiops=max bps=2097152 iops=1024 burst=3 burst_length=5";
        assert_eq!(burst.to_string(), words);
        let floor = parse("a:reserve_iops=2k,limit_percent=50,overcommit").expect("right").promise;
        assert_eq!((floor.guarantee.reserve.iops, floor.guarantee.limit.percent), (2_048, 50));
        assert!(floor.overcommit);
        let goal = parse("a:p99_read=2ms,p99_write=900").expect("right").promise;
        assert!(goal.to_string().contains("p99_read=2ms p99_write=900us "), "{goal}");
        assert_eq!(parse("a:io.weight=10000").expect("right").weight, 1000);
        assert_eq!(parse("a").expect("right").weight, 100);
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(
            refusal("a:speed=1").contains("'speed=1' says nothing about a group; accepted: weight")
        );
        assert!(refusal("a:weight").contains("accepted: weight"));
        assert!(refusal("a:weight=heavy").contains("no number"));
        assert!(refusal("a:weight=0").contains("accepted are 1 to 1000"));
        assert!(refusal("a:io.weight=10001").contains("accepted are 1 to 10000"));
        assert!(refusal("a:rbps=0").contains("rbps: '0' is not valid"));
        assert!(refusal("a:burst=0").contains("accepted: 1 to 1000"));
        assert!(refusal("a:parent=b").contains("no group 'b'"));
        assert!(refusal("a:parent=a").contains("itself or below it"));
        assert!(refusal(":weight=3").contains("no name for a group"));
    }

    #[test]
    fn jobs_make_groups_as_in_fio_unless_groups_are_described() {
        let jobs = [job("a", Some(300)), job("a", None), job("b", None)];
        let made = tree(Vec::new(), &jobs).expect("right");
        let weights: Vec<_> = made.iter().map(|group| (&*group.name, group.weight)).collect();
        assert_eq!(weights, [("a", 300), ("b", 100)]);
        let described = vec![parse("a:weight=300").expect("right")];
        assert!(tree(described.clone(), &[job("a", Some(300))]).is_ok());
        let error = tree(described.clone(), &[job("b", None)]).expect_err("a slip of the pen");
        assert!(error.to_string().contains("no group 'b'; accepted: a"));
        let error = tree(described, &[job("a", Some(7))]).expect_err("which of the two?");
        assert!(error.to_string().contains("has a weight of 300"));
    }
}
