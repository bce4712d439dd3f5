//! What became of the work in several repositories, in one line. Pure.

use std::fmt;

use stillframe_remote::failure_kind::FailureKind;

/// How the work in one repository has fared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fared {
    /// It was sent, and is proven.
    Pushed,
    /// There was nothing new, and what there is is proven.
    Unchanged,
    /// It is in the store, and there is no remote to send it to.
    RecordedOnly,
    /// It is not proven on the remote. The text is one line.
    Failed(FailureKind, String),
}

/// What became of the work in all repositories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) pushed: usize,
    pub(crate) unchanged: usize,
    pub(crate) recorded: usize,
    /// Those that failed, in the order in which they were given.
    pub(crate) failed: Vec<(String, FailureKind, String)>,
    /// The most severe kind; `None`: nothing failed.
    pub(crate) kind: Option<FailureKind>,
}

/// Sums up what became of each repository. That there is none is a failure: nothing was saved.
pub(crate) fn summary(outcomes: &[(String, Fared)]) -> Summary {
    let count = |wanted: &Fared| {
        let found = outcomes.iter().filter(|(_, outcome)| outcome == wanted);
        found.count()
    };
    let failed: Vec<_> = outcomes
        .iter()
        .filter_map(|(name, outcome)| match outcome {
            Fared::Failed(kind, why) => Some((name.clone(), *kind, why.clone())),
            _ => None,
        })
        .collect();
    let kind = match outcomes.is_empty() {
        true => Some(FailureKind::Unknown),
        false => failed.iter().map(|(_, kind, _)| *kind).max(),
    };
    Summary {
        pushed: count(&Fared::Pushed),
        unchanged: count(&Fared::Unchanged),
        recorded: count(&Fared::RecordedOnly),
        failed,
        kind,
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.pushed, "pushed"),
            (self.unchanged, "unchanged"),
            (self.recorded, "kept without a remote"),
        ];
        let mut parts: Vec<String> = counts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let failed = self.failed.iter();
        parts.extend(failed.map(|(name, kind, why)| match why.is_empty() {
            true => format!("{name}: {kind}"),
            false => format!("{name}: {kind} ({why})"),
        }));
        match parts.is_empty() {
            true => f.write_str("no repository"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(outcomes: &[(&str, Fared)]) -> Summary {
        let outcomes = outcomes.iter();
        let outcomes: Vec<_> = outcomes
            .map(|(name, outcome)| ((*name).to_owned(), outcome.clone()))
            .collect();
        summary(&outcomes)
    }

    fn failed(kind: FailureKind) -> Fared {
        Fared::Failed(kind, String::new())
    }

    #[test]
    fn one_that_is_refused_is_named_and_one_that_is_unchanged_is_counted() {
        let refused = Fared::Failed(FailureKind::AuthDenied, "401".to_owned());
        let summary = of(&[("web", Fared::Unchanged), ("api", refused)]);
        assert_eq!(summary.kind, Some(FailureKind::AuthDenied));
        assert_eq!(summary.to_string(), "1 unchanged, api: AuthDenied (401)");
        assert_eq!((summary.pushed, summary.unchanged), (0, 1));
    }

    #[test]
    fn one_that_fails_leaves_the_others_as_they_are() {
        let summary = of(&[
            ("a", Fared::Pushed),
            ("b", failed(FailureKind::LocalGit)),
            ("c", Fared::Pushed),
            ("d", Fared::RecordedOnly),
            ("e", failed(FailureKind::NetworkBlip)),
        ]);
        let said = "2 pushed, 1 kept without a remote, b: LocalGit, e: NetworkBlip";
        assert_eq!(summary.to_string(), said);
        assert_eq!(summary.kind, Some(FailureKind::LocalGit));
    }

    #[test]
    fn the_kind_of_all_is_the_lowest_in_the_table() {
        let table = [
            "NetworkBlip",
            "RemoteDivergent",
            "RefConflict",
            "RemotePolicyRejected",
            "AuthDenied",
            "TooLarge",
            "SecretFound",
            "LocalGit",
            "Unknown",
        ];
        for (above, upper) in table.iter().enumerate() {
            for (below, lower) in table.iter().enumerate() {
                let kinds = [upper, lower].map(|name| FailureKind::parse(name).unwrap());
                let summary = of(&[("a", failed(kinds[0])), ("b", failed(kinds[1]))]);
                let expected = table[above.max(below)];
                assert_eq!(
                    summary.kind.unwrap().as_str(),
                    expected,
                    "{upper} and {lower}"
                );
            }
        }
    }

    #[test]
    fn nothing_failed_has_no_kind_and_no_repository_is_unknown() {
        let fine = of(&[("a", Fared::Pushed), ("b", Fared::Unchanged)]);
        assert_eq!(
            (fine.kind, fine.to_string().as_str()),
            (None, "1 pushed, 1 unchanged")
        );
        let none = of(&[]);
        assert_eq!(none.kind, Some(FailureKind::Unknown));
        assert_eq!(none.to_string(), "no repository");
    }
}
