//! What a capture does about the content of files.

use super::Publish;
use crate::caches::{CONTENT_STAT_CACHE, HASH_STAT_CACHE};
use crate::hash::limit::Limit;
use crate::retain::RetainContent;

/// What an attempt to capture keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// Digests only.
    Digests,
    /// Digests only. The attempt fails if at most so many bytes of content would be new.
    DigestsAbove(u64),
    /// Content.
    Content,
    /// Content. The attempt fails if more than so many bytes of it are new.
    ContentUpTo(u64),
}

impl Keeping {
    /// What to attempt, in this order; the last cannot fail. `is_above_limit` says whether the last
    /// capture had more new content than its limit.
    pub(super) fn attempts(
        retain: RetainContent,
        publish: Publish,
        is_above_limit: impl FnOnce() -> bool,
    ) -> Vec<Self> {
        match retain {
            RetainContent::Never => vec![Self::Digests],
            RetainContent::Always => vec![Self::Content],
            // Nothing is written, so a limit of what is written does not apply.
            RetainContent::UpTo(_) if publish == Publish::No => vec![Self::Content],
            // Otherwise each capture would write far too much content and remove it again.
            RetainContent::UpTo(limit) if is_above_limit() => vec![
                Self::DigestsAbove(limit),
                Self::ContentUpTo(limit),
                Self::Digests,
            ],
            RetainContent::UpTo(limit) => vec![Self::ContentUpTo(limit), Self::Digests],
        }
    }

    pub(super) fn has_content(self) -> bool {
        matches!(self, Self::Content | Self::ContentUpTo(_))
    }

    /// How much content may be new.
    pub(super) fn limit(self) -> Option<Limit> {
        match self {
            Self::ContentUpTo(bytes) => Some(Limit::of(bytes)),
            Self::Digests | Self::DigestsAbove(_) | Self::Content => None,
        }
    }

    /// The stat cache that the attempt uses. A cache entry proves a digest and not that the content
    /// is stored, so captures that keep content use a cache of their own.
    pub(super) fn cache_file(self) -> &'static str {
        match self.has_content() {
            true => CONTENT_STAT_CACHE,
            false => HASH_STAT_CACHE,
        }
    }
}
