//! PLACEHOLDER
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WalkReason {
    NoJournal,
    RulesChanged,
    CacheReplaced,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Search {
    Walked { because: Option<WalkReason> },
    Watched { directories: u64 },
}
impl Default for Search {
    fn default() -> Self {
        Self::Walked { because: None }
    }
}
