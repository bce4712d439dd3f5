//! Comparing the planned steps of a run with its record: steps match by name, not by position.
//! Pure.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::records::step::StepRow;
use crate::step::options::definition_hash;

/// Which step of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepIdentity {
    /// The name of its phase.
    pub phase: String,
    /// The iteration of its phase, from 0.
    pub iteration: u32,
    /// Its name.
    pub step: String,
}

impl StepIdentity {
    /// This step.
    pub fn new(phase: impl Into<String>, iteration: u32, step: impl Into<String>) -> Self {
        Self {
            phase: phase.into(),
            iteration,
            step: step.into(),
        }
    }
}

impl fmt::Display for StepIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.iteration {
            0 => write!(f, "{}/{}", self.phase, self.step),
            iteration => write!(f, "{}[{iteration}]/{}", self.phase, self.step),
        }
    }
}

/// The steps that a run is going to do: see
/// [`RunContext::check_plan`](crate::RunContext::check_plan).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    steps: Vec<(StepIdentity, Value)>,
}

impl StepPlan {
    /// A plan without a step.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step with what it does: see
    /// [`StepOptions::definition`](crate::steps::StepOptions::definition).
    pub fn step(mut self, identity: StepIdentity, definition: impl Into<Value>) -> Self {
        self.steps.push((identity, definition.into()));
        self
    }
}

/// A plan beside what is on record. Each list is in the order of its source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PlanReport {
    /// On record with the same definition: what is done of them is not done again.
    pub kept: Vec<StepIdentity>,
    /// Not on record.
    pub new: Vec<StepIdentity>,
    /// On record, and not in the plan.
    pub gone: Vec<StepIdentity>,
    /// On record with another definition.
    pub changed: Vec<StepIdentity>,
}

impl PlanReport {
    /// Whether a step is on record with another definition, so that its result is not that of the
    /// plan's.
    pub fn is_refused(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The plan beside `steps`.
    pub(crate) fn compare(plan: &StepPlan, steps: &[StepRow]) -> Self {
        let mut report = Self::default();
        for (identity, definition) in &plan.steps {
            let list = match steps.iter().find(|row| identity_of(row) == *identity) {
                None => &mut report.new,
                Some(row)
                    if row.status == crate::records::step::StepStatus::Skipped
                        || row.definition_hash == definition_hash(definition) =>
                {
                    &mut report.kept
                }
                Some(_) => &mut report.changed,
            };
            list.push(identity.clone());
        }
        let is_planned =
            |identity: &StepIdentity| plan.steps.iter().any(|(planned, _)| planned == identity);
        let recorded = steps.iter().map(identity_of);
        report.gone = recorded.filter(|id| !is_planned(id)).collect();
        report
    }

    /// One step that is on record with another definition, beside the others, of which nothing is
    /// said yet.
    pub(crate) fn of_one(changed: StepIdentity, steps: &[StepRow]) -> Self {
        let others = steps.iter().map(identity_of).filter(|id| *id != changed);
        Self {
            kept: others.collect(),
            changed: vec![changed],
            ..Self::default()
        }
    }
}

/// Which step a row is about.
pub(crate) fn identity_of(row: &StepRow) -> StepIdentity {
    StepIdentity::new(&row.phase.phase, row.phase.iteration, &row.name)
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = [
            ("with another definition", &self.changed),
            ("kept", &self.kept),
            ("new", &self.new),
            ("gone", &self.gone),
        ];
        f.write_str("the plan of this run is another than the one on record")?;
        let mut before = ": ";
        for (what, list) in lists {
            if let [first, rest @ ..] = list.as_slice() {
                write!(f, "{before}{what}: {first}")?;
                for identity in rest {
                    write!(f, ", {identity}")?;
                }
                before = "; ";
            }
        }
        f.write_str("; a new run id begins anew")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::step::PhaseKey;

    fn row(name: &str, definition: &str) -> StepRow {
        let phase = PhaseKey {
            phase: "work".into(),
            iteration: 0,
        };
        StepRow::new(phase, name.into(), definition_hash(&definition.into()))
    }

    fn work(name: &str) -> StepIdentity {
        StepIdentity::new("work", 0, name)
    }

    #[test]
    fn steps_match_by_name_and_not_by_their_place() {
        let plan = StepPlan::new()
            .step(work("x"), "x")
            .step(work("a"), "a")
            .step(work("b"), "b")
            .step(work("c"), "c");
        let report = PlanReport::compare(&plan, &[row("a", "a"), row("b", "b"), row("old", "")]);
        assert_eq!(report.kept, [work("a"), work("b")]);
        assert_eq!(report.new, [work("x"), work("c")]);
        assert_eq!(report.gone, [work("old")]);
        assert!(!report.is_refused());
    }

    #[test]
    fn a_definition_that_changed_refuses_the_plan_and_says_what_is_what() {
        let plan = StepPlan::new()
            .step(work("a"), "other")
            .step(work("n"), "n");
        let report = PlanReport::compare(&plan, &[row("a", "a"), row("b", "b")]);
        assert!(report.is_refused());
        assert_eq!(
            report.to_string(),
            "the plan of this run is another than the one on record: with another definition: work/a; new: work/n; gone: work/b; a new run id begins anew"
        );
        let looped = StepIdentity::new("fix", 2, "edit");
        assert_eq!(looped.to_string(), "fix[2]/edit");
    }
}
