//! How a capture found the changes: by walking the whole workspace, or with a watch.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a capture found what changed since the one before. Both ways give the same snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "how")]
#[non_exhaustive]
pub enum Search {
    /// It looked at every file.
    Walked {
        /// Why, where a watch was asked for; `None`: it was not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        because: Option<WalkReason>,
    },
    /// It looked only where something had changed since the last capture.
    Watched {
        /// The directories in which it looked at something.
        directories: u64,
    },
}

impl Search {
    /// Whether every file was looked at, and nothing else was asked for.
    pub fn is_plain_walk(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Search {
    /// Every file was looked at, and nothing else was asked for.
    fn default() -> Self {
        Self::Walked { because: None }
    }
}

/// Why a capture looked at every file, though a watch was asked for.
///
/// As text it is a clause for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WalkReason {
    /// There was no watch: this is the first watched capture of this process or of this handle of
    /// the workspace, or the last one failed.
    NoJournal,
    /// More happened at once than the kernel kept
    /// (`/proc/sys/fs/inotify/max_queued_events`).
    QueueOverflow,
    /// The user may not watch that many directories (`/proc/sys/fs/inotify/max_user_watches`).
    WatchLimit,
    /// A directory could not be watched, or its watch was lost.
    LostWatch,
    /// Files may change without an event here, because of the kind of the file system, or through
    /// another mount of it.
    Filesystem,
    /// A mount at, above or below the workspace came, went or changed.
    Remounted,
    /// Ignore rules or attributes changed, which may concern files that did not.
    RulesChanged,
    /// Another process captured the workspace meanwhile, so the state in memory is not the latest.
    CacheReplaced,
    /// There are more files to look at than the watch lists.
    TooManyFiles,
    /// A file got another hard link: only a walk finds its other names in the workspace.
    HardLink,
    /// inotify is not available: the kernel, a sandbox or a limit on instances
    /// (`/proc/sys/fs/inotify/max_user_instances`) refuses it.
    Unavailable,
    /// A reason that this version does not know, in the record of a newer one.
    #[serde(other)]
    Unknown,
}

impl WalkReason {
    /// The name that JSON documents use, such as `queue_overflow`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoJournal => "no_journal",
            Self::QueueOverflow => "queue_overflow",
            Self::WatchLimit => "watch_limit",
            Self::LostWatch => "lost_watch",
            Self::Filesystem => "filesystem",
            Self::Remounted => "remounted",
            Self::RulesChanged => "rules_changed",
            Self::CacheReplaced => "cache_replaced",
            Self::TooManyFiles => "too_many_files",
            Self::HardLink => "hard_link",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for WalkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoJournal => "nothing was watched before it",
            Self::QueueOverflow => "more happened at once than the kernel kept",
            Self::WatchLimit => "the user may not watch that many directories",
            Self::LostWatch => "a directory could not be watched, or was lost sight of",
            Self::Filesystem => "files may change unseen on this file system",
            Self::Remounted => "a mount at, above or below the workspace changed",
            Self::RulesChanged => "ignore rules or attributes changed",
            Self::CacheReplaced => "another process captured the workspace meanwhile",
            Self::TooManyFiles => "there were too many files to look at",
            Self::HardLink => "a file got another hard link",
            Self::Unavailable => "inotify is not available",
            Self::Unknown => "of a reason that this version does not know",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_reads_well_in_json_and_is_read_back() {
        for (search, json) in [
            (Search::default(), r#"{"how":"walked"}"#),
            (
                Search::Walked {
                    because: Some(WalkReason::QueueOverflow),
                },
                r#"{"how":"walked","because":"queue_overflow"}"#,
            ),
            (
                Search::Watched { directories: 3 },
                r#"{"how":"watched","directories":3}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&search).unwrap(), json);
            assert_eq!(serde_json::from_str::<Search>(json).unwrap(), search);
        }
    }

    #[test]
    fn the_name_of_a_reason_is_the_one_in_json() {
        for reason in [
            WalkReason::NoJournal,
            WalkReason::QueueOverflow,
            WalkReason::WatchLimit,
            WalkReason::LostWatch,
            WalkReason::Filesystem,
            WalkReason::Remounted,
            WalkReason::RulesChanged,
            WalkReason::CacheReplaced,
            WalkReason::TooManyFiles,
            WalkReason::HardLink,
            WalkReason::Unavailable,
            WalkReason::Unknown,
        ] {
            let json = serde_json::to_value(reason).unwrap();
            assert_eq!(json, reason.as_str());
            assert_eq!(
                serde_json::from_value::<WalkReason>(json).unwrap(),
                reason,
                "{reason}"
            );
        }
    }

    #[test]
    fn the_reason_of_a_newer_version_does_not_hide_the_record() {
        let newer = r#"{"how":"walked","because":"moon_phase"}"#;
        assert_eq!(
            serde_json::from_str::<Search>(newer).unwrap(),
            Search::Walked {
                because: Some(WalkReason::Unknown)
            }
        );
    }
}
