//! Whether the content of files is kept.

use serde::{Deserialize, Serialize};

/// Whether the hash backend keeps the content of what it captures. The git backend always does.
///
/// `true` and `false` can stand for [`RetainContent::Always`] and [`RetainContent::Never`].
///
/// Serialised, it has the field `retain_content` and, only for [`RetainContent::UpTo`],
/// `retain_content_bytes`. A program that knows only the first field always keeps content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub enum RetainContent {
    /// Only digests: they show what changed, but cannot restore it.
    #[default]
    Never,
    /// Keep all content, whatever its size.
    Always,
    /// Keep content if a capture would add at most this many bytes to the store, each content
    /// counted once. Above that limit the snapshot has only digests, and
    /// [`SnapshotMetadata::has_content`](crate::snapshot::SnapshotMetadata) says so. The store
    /// never grows by more than the limit: content that was stored before the limit was reached is
    /// removed before more is written.
    UpTo(u64),
}

impl RetainContent {
    /// Whether no content is kept, whatever there is.
    pub fn is_never(self) -> bool {
        self == Self::Never
    }
}

impl From<bool> for RetainContent {
    fn from(retains: bool) -> Self {
        match retains {
            true => Self::Always,
            false => Self::Never,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    retain_content: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retain_content_bytes: Option<u64>,
}

impl From<Stored> for RetainContent {
    fn from(stored: Stored) -> Self {
        match (stored.retain_content, stored.retain_content_bytes) {
            (true, Some(bytes)) => Self::UpTo(bytes),
            (retains, _) => retains.into(),
        }
    }
}

impl From<RetainContent> for Stored {
    fn from(retain: RetainContent) -> Self {
        Self {
            retain_content: !retain.is_never(),
            retain_content_bytes: match retain {
                RetainContent::UpTo(bytes) => Some(bytes),
                RetainContent::Never | RetainContent::Always => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_an_earlier_version_wrote_is_read_and_reads_what_this_one_writes() {
        for (retain, stored) in [
            (RetainContent::Never, json!({"retain_content": false})),
            (RetainContent::Always, json!({"retain_content": true})),
            (
                RetainContent::UpTo(7),
                json!({"retain_content": true, "retain_content_bytes": 7}),
            ),
        ] {
            assert_eq!(serde_json::to_value(retain).unwrap(), stored);
            assert_eq!(
                serde_json::from_value::<RetainContent>(stored).unwrap(),
                retain
            );
        }
    }
}
