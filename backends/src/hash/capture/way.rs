//! What a capture does about the content of files.

use super::Publish;
use crate::caches::{CONTENT_STAT_CACHE, HASH_STAT_CACHE};
use crate::hash::limit::Limit;
use crate::retain::RetainContent;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Digests alone.
    Digests,
    /// Digests alone, unless no more than so many bytes of content would be new.
    DigestsAbove(u64),
    /// Content.
    Content,
    /// Content, unless more than so many bytes of it are new.
    ContentUpTo(u64),
}

impl Way {
    /// The ways to try in their order; the last has no condition. `is_above_limit`: the last
    /// capture had more content than the limit that is asked for.
    pub(super) fn to_try(
        retain: RetainContent,
        publish: Publish,
        is_above_limit: impl FnOnce() -> bool,
    ) -> Vec<Self> {
        match retain {
            RetainContent::Never => vec![Self::Digests],
            RetainContent::Always => vec![Self::Content],
            // Nothing is written, be it content or not.
            RetainContent::UpTo(_) if publish == Publish::No => vec![Self::Content],
            // So that what is far too much is not written and removed again by every capture.
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

    /// A cache that vouches for a digest says nothing about its content, so captures that keep
    /// content trust only a cache of their own kind.
    pub(super) fn cache_file(self) -> &'static str {
        match self.has_content() {
            true => CONTENT_STAT_CACHE,
            false => HASH_STAT_CACHE,
        }
    }
}
