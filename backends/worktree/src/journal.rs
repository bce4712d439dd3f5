//! The restore journal: the intent of a restore, stored until the restore is done.
//!
//! One file in the store, `restore.journal`, append only. A frame is: magic (8 bytes), version
//! (u32), operation id (16), kind (u8), sequence (u32), length of the payload (u32), payload,
//! blake3 of everything before it (32); numbers are little-endian. The payload is bincode, and is
//! decoded only after its checksum was compared. Frames come in this order:
//!
//! 1. `Staging`: the directory for the new bytes. Nothing has happened yet.
//! 2. `Steps`, any number: the steps, in order.
//! 3. `Intent`: the steps are complete and their bytes synced. The point of no return.
//! 4. `Done`: only cleanup is left.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::area;
use crate::codec::{self, TooLong};
use crate::durable;
use crate::error::PathError;
use crate::faults::Effect;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::plan_id::PlanId;
use crate::problem::Problem;
use crate::quota::Reserved;
use crate::snapshot::SnapshotId;
use crate::stat_cache::{CachedEntry, EntryStat, Flags};
use crate::store_error::StoreError;
use crate::tree::ContentId;

/// The name of the journal in the store.
pub const FILE: &str = "restore.journal";
const MAGIC: [u8; 8] = *b"SFRSTJ\r\n";
/// The version of the format that is written and read.
pub const VERSION: u32 = 5;
const HEADER_BYTES: usize = 8 + 4 + 16 + 1 + 4 + 4;
const CHECKSUM_BYTES: usize = blake3::OUT_LEN;
/// Bounds what is allocated for one frame. Steps are spread over as many frames as they need.
const MAX_PAYLOAD_BYTES: usize = 16 * 1024 * 1024;
/// Bounds what is read at all: some ten million steps with long paths.
const MAX_JOURNAL_BYTES: u64 = 4 * 1024 * 1024 * 1024;
/// About this many bytes of steps go into one frame.
const STEPS_BYTES: usize = 1024 * 1024;

/// Names one restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationId([u8; 16]);

impl OperationId {
    /// A new one.
    pub fn random() -> Self {
        Self(*uuid::Uuid::new_v4().as_bytes())
    }

    /// The one of what is done with this guard, for what may be begun twice.
    pub(crate) fn of(guard: &SnapshotId) -> Self {
        let digest = blake3::hash(guard.as_str().as_bytes());
        let (id, _) = digest.as_bytes().split_first_chunk().expect("it is longer");
        Self(*id)
    }

    /// Whether `text` is an id as it is displayed.
    pub(crate) fn is_one(text: &[u8]) -> bool {
        let is_digit = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        text.len() == 32 && text.iter().all(is_digit)
    }
}

impl std::fmt::Display for OperationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

/// Where a restore keeps what it is about to place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staging {
    /// The inode of the workspace's directory. Its device may be another after a restart.
    pub workspace_inode: u64,
    /// The private directory with staged and displaced entries, as raw bytes of its path.
    pub directory: Vec<u8>,
    /// The guard, which what is displaced belongs to.
    pub guard: SnapshotId,
}

impl Staging {
    /// The private directory.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.directory.clone()))
    }
}

/// The promise to carry out every step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The plan that was agreed to.
    pub plan: PlanId,
    /// The snapshot that is put back.
    pub target: SnapshotId,
    /// How many steps the frames before this one hold.
    pub steps: u64,
    /// The part for the repository, which is restored after the files; the backend reads this
    /// value.
    pub repository: Option<Vec<u8>>,
}

/// What an intent begins with; the bytes of [`Intent::repository`] follow to its end.
#[derive(Serialize, Deserialize)]
struct IntentHead {
    plan: PlanId,
    target: SnapshotId,
    steps: u64,
    has_repository: Option<()>,
}

impl Intent {
    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut payload = encode(&IntentHead {
            plan: self.plan.clone(),
            target: self.target.clone(),
            steps: self.steps,
            has_repository: self.repository.as_ref().map(|_| ()),
        })?;
        payload.extend_from_slice(self.repository.as_deref().unwrap_or_default());
        match payload.len() <= MAX_PAYLOAD_BYTES {
            true => Ok(payload),
            false => Err(too_long()),
        }
    }

    fn decode(payload: &[u8]) -> Result<Self, StoreError> {
        let (head, rest) = codec::split_first::<IntentHead>(payload).ok_or_else(undecodable)?;
        let repository = head.has_repository.map(|()| rest.to_vec());
        if repository.is_none() && !rest.is_empty() {
            return Err(undecodable());
        }
        Ok(Self {
            plan: head.plan,
            target: head.target,
            steps: head.steps,
            repository,
        })
    }
}

/// One change of the workspace. It says how a path is to be, so repeating it is harmless.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is changed.
    pub path: RelPath,
    /// What must be there for the step to be carried out; `None`: nothing, or for the modes of
    /// directories anything.
    pub expected: Option<Seen>,
    pub(crate) action: Action,
}

/// What the guard saw of an entry, by which it is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// As `lstat` told it.
    pub stat: EntryStat,
    /// What it held; `None` for a special file, which holds nothing.
    pub content: Option<ContentId>,
    /// Whether it may have been written since without the stat data showing it.
    pub is_racy: bool,
}

impl Seen {
    /// A file or link as a capture has it.
    pub fn of(entry: &CachedEntry) -> Self {
        Self {
            stat: entry.stat,
            content: Some(entry.id),
            is_racy: entry.flags.has(Flags::RACY),
        }
    }
}

/// What a step does. What it displaces goes to the trash under the number of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Puts the entry that is staged under the number of the step into place.
    Place {
        /// The inode of what is staged, which tells it from what it displaced.
        inode: u64,
    },
    /// Moves a file, link or special file to the trash.
    Remove,
    /// Makes a directory that only its owner may enter; a later step sets its mode.
    MakeDirectory,
    /// Removes a directory if nothing is in it.
    RemoveDirectory,
    /// Sets permission bits.
    SetMode {
        /// The bits that must be there; `None`: any.
        from: Option<u32>,
        /// The bits that it gets.
        to: u32,
    },
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    op: Operation,
    file: File,
    store: PathBuf,
    operation: OperationId,
    sequence: u32,
    /// Its length.
    bytes: u64,
    /// As many bytes.
    reserved: Reserved,
}

/// A journal that was left behind.
#[derive(Debug)]
pub struct Leftover {
    /// To go on with.
    pub journal: Journal,
    /// Where the new bytes are; `None`: it ended within its first frame.
    pub staging: Option<Staging>,
    /// How far it had come.
    pub state: State,
}

/// How far the restore of a journal had come.
#[derive(Debug)]
pub enum State {
    /// Nothing of the workspace was touched.
    Staging,
    /// It has to be carried out.
    Intended(Intent, Vec<Step>),
    /// It was carried out.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Staging = 1,
    Steps = 2,
    Intent = 3,
    Done = 4,
}

impl Journal {
    /// Begins the journal of a restore; on `Ok` it is on disk.
    pub(crate) fn begin(
        op: &Operation,
        store: &Path,
        operation: OperationId,
        staging: &Staging,
    ) -> Result<Self, PathError> {
        let path = store.join(FILE);
        op.effect(Effect::Stage(&path))
            .map_err(PathError::at("make the journal", &path))?;
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(PathError::at("make the journal", &path))?;
        let mut journal = Self {
            op: op.clone(),
            file,
            store: store.to_owned(),
            operation,
            sequence: 0,
            bytes: 0,
            reserved: op.reserve(),
        };
        let begun = journal.append(Kind::Staging, staging).and_then(|()| {
            journal.sync()?;
            durable::sync_directory(op, store)
        });
        match begun {
            Ok(()) => Ok(journal),
            Err(error) => {
                // Best effort: a journal without a whole frame means that nothing happened.
                let _ = journal.remove();
                Err(error)
            }
        }
    }

    /// Promises to carry out `steps`. On `Ok` they are on disk, and recovery will finish them.
    pub(crate) fn intend(&mut self, intent: &Intent, steps: &[Step]) -> Result<(), PathError> {
        let mut frame: Vec<&Step> = Vec::new();
        let mut bytes = 0;
        for step in steps {
            // Everything but the path is below two hundred bytes.
            let step_bytes = step.path.as_bytes().len() + 200;
            if bytes + step_bytes > STEPS_BYTES && !frame.is_empty() {
                self.append(Kind::Steps, &frame)?;
                frame.clear();
                bytes = 0;
            }
            bytes += step_bytes;
            frame.push(step);
        }
        if !frame.is_empty() {
            self.append(Kind::Steps, &frame)?;
        }
        self.append_payload(Kind::Intent, intent.encode())?;
        match seeded_bug!("intent-not-synced") {
            true => Ok(()),
            false => self.sync(),
        }
    }

    /// Says that nothing is left to do. On `Ok` that is on disk.
    pub fn done(&mut self) -> Result<(), PathError> {
        self.append(Kind::Done, &())?;
        self.sync()
    }

    /// Removes the journal, once everything that it names is gone or in place.
    pub fn remove(self) -> Result<(), PathError> {
        let path = self.store.join(FILE);
        self.op
            .effect(Effect::Remove(&path))
            .and_then(|()| fs::remove_file(&path))
            .map_err(PathError::at("remove", &path))?;
        durable::sync_directory(&self.op, &self.store)
    }

    fn append(&mut self, kind: Kind, payload: &impl Serialize) -> Result<(), PathError> {
        self.append_payload(kind, encode(payload))
    }

    fn append_payload(
        &mut self,
        kind: Kind,
        payload: io::Result<Vec<u8>>,
    ) -> Result<(), PathError> {
        let path = self.store.join(FILE);
        let payload = payload.map_err(PathError::at("write", &path))?;
        let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len() + CHECKSUM_BYTES);
        frame.extend_from_slice(&MAGIC);
        frame.extend_from_slice(&VERSION.to_le_bytes());
        frame.extend_from_slice(&self.operation.0);
        frame.push(kind as u8);
        frame.extend_from_slice(&self.sequence.to_le_bytes());
        let length = u32::try_from(payload.len()).expect("the codec's limit is below that");
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(&payload);
        let checksum = blake3::hash(&frame);
        frame.extend_from_slice(checksum.as_bytes());
        let bytes = self.bytes + frame.len() as u64;
        if kind != Kind::Done {
            // The restore is done by then, and there must be space to record that.
            let reserved = self.reserved.up_to(bytes);
            reserved.map_err(PathError::at("write", &path))?;
        }
        self.op
            .effect(Effect::Write(&path))
            .and_then(|()| self.file.write_all(&frame))
            .map_err(PathError::at("write", &path))?;
        self.bytes = bytes;
        self.sequence += 1;
        Ok(())
    }

    fn sync(&self) -> Result<(), PathError> {
        let path = self.store.join(FILE);
        self.op
            .effect(Effect::Sync(&path))
            .and_then(|()| self.file.sync_all())
            .map_err(PathError::at("sync", path))
    }
}

/// Finds the journal of a restore that did not end; `None` if there is none.
pub fn find(op: &Operation, store: &Path) -> Result<Option<Leftover>, StoreError> {
    let path = store.join(FILE);
    let Some((contents, bytes)) = read(store)? else {
        return Ok(None);
    };
    let file = OpenOptions::new()
        .append(true)
        .open(&path)
        .map_err(PathError::at("open", &path))?;
    if contents.whole_bytes < bytes {
        // What follows must not come after a torn frame.
        op.effect(Effect::Write(&path))
            .and_then(|()| file.set_len(contents.whole_bytes as u64))
            .map_err(PathError::at("shorten", &path))?;
    }
    Ok(Some(Leftover {
        journal: Journal {
            op: op.clone(),
            file,
            store: store.to_owned(),
            operation: contents.operation.unwrap_or(OperationId([0; 16])),
            sequence: contents.frames,
            bytes: contents.whole_bytes as u64,
            reserved: op.reserve(),
        },
        staging: contents.staging,
        state: contents.state,
    }))
}

/// Whether the backend can read [`Intent::repository`].
pub type CheckRepository = fn(&[u8]) -> Result<(), StoreError>;

/// What is wrong with the journal, if recovery cannot go by it. Nothing is written.
pub fn problem(store: &Path, check: CheckRepository) -> Result<Option<Problem>, StoreError> {
    let checked = read(store).and_then(|found| match found {
        Some((contents, _)) => contents.check(check),
        None => Ok(()),
    });
    match checked {
        Err(StoreError::Corrupt { what, detail }) => Ok(Some(Problem::new(what, detail))),
        checked => checked.map(|()| None),
    }
}

/// Removes a journal that recovery cannot go by, and answers with what is wrong with it. What its
/// restore displaced stays where it is, for as long as its guard.
pub fn give_up(
    op: &Operation,
    store: &Path,
    check: CheckRepository,
) -> Result<Option<Problem>, StoreError> {
    let problem = problem(store, check)?;
    if problem.is_some() {
        durable::remove_file(op, &store.join(FILE))?;
        durable::sync_directory(op, store)?;
    }
    Ok(problem)
}

/// What the journal says, and its length in bytes.
fn read(store: &Path) -> Result<Option<(Contents, usize)>, StoreError> {
    let Some(bytes) = durable::read(&store.join(FILE), MAX_JOURNAL_BYTES)? else {
        return Ok(None);
    };
    let contents = Contents::read(&bytes)?;
    let is_torn = contents.whole_bytes < bytes.len();
    if is_torn
        && let (State::Staging, Some(staging)) = (&contents.state, &contents.staging)
        && area::has_displaced(staging, &contents.steps)
    {
        return Err(corrupt(
            "its last frame is damaged, and some of its steps were carried out",
        ));
    }
    Ok(Some((contents, bytes.len())))
}

/// What the whole frames of a journal say.
struct Contents {
    operation: Option<OperationId>,
    staging: Option<Staging>,
    state: State,
    /// Steps without an intent.
    steps: Vec<Step>,
    frames: u32,
    whole_bytes: usize,
}

impl Contents {
    fn read(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut contents = Self {
            operation: None,
            staging: None,
            state: State::Staging,
            steps: Vec::new(),
            frames: 0,
            whole_bytes: 0,
        };
        while contents.whole_bytes < bytes.len() {
            let rest = &bytes[contents.whole_bytes..];
            let Some(frame) = Frame::read(rest)? else {
                contents.refuse_if_frames_follow(rest)?;
                break;
            };
            if contents.operation.is_some_and(|o| o != frame.operation) {
                // Left by an earlier restore whose blocks were used again.
                break;
            }
            if frame.sequence != contents.frames {
                return Err(corrupt("a frame is missing"));
            }
            contents.operation = Some(frame.operation);
            contents.take(&frame)?;
            contents.frames += 1;
            contents.whole_bytes += frame.total_bytes;
        }
        Ok(contents)
    }

    fn check(&self, repository: CheckRepository) -> Result<(), StoreError> {
        match &self.state {
            State::Intended(intent, _) => intent.repository.as_deref().map_or(Ok(()), repository),
            State::Staging | State::Done => Ok(()),
        }
    }

    fn take(&mut self, frame: &Frame<'_>) -> Result<(), StoreError> {
        match (frame.kind, &self.state, &self.staging) {
            (Kind::Staging, State::Staging, None) => {
                self.staging = Some(decode(frame.payload)?);
            }
            (Kind::Steps, State::Staging, Some(_)) => {
                self.steps.append(&mut decode(frame.payload)?);
            }
            (Kind::Intent, State::Staging, Some(_)) => {
                let intent = Intent::decode(frame.payload)?;
                if intent.steps != self.steps.len() as u64 {
                    return Err(corrupt("steps are missing"));
                }
                self.state = State::Intended(intent, std::mem::take(&mut self.steps));
            }
            (Kind::Done, State::Intended(..), _) => {
                decode::<()>(frame.payload)?;
                self.state = State::Done;
            }
            _ => return Err(corrupt("its frames are out of order")),
        }
        Ok(())
    }

    /// A torn frame is the last thing that was written. With whole ones behind it, it was damaged
    /// later.
    fn refuse_if_frames_follow(&self, rest: &[u8]) -> Result<(), StoreError> {
        let mut at = 1;
        while let Some(found) = find_magic(&rest[at.min(rest.len())..]) {
            at += found;
            let follows = Frame::read(&rest[at..])?
                .is_some_and(|f| self.operation.is_none_or(|o| o == f.operation));
            if follows {
                return Err(corrupt("a frame before the last one is damaged"));
            }
            at += 1;
        }
        Ok(())
    }
}

fn find_magic(bytes: &[u8]) -> Option<usize> {
    bytes.windows(MAGIC.len()).position(|w| w == MAGIC)
}

/// A frame whose checksum holds.
struct Frame<'a> {
    operation: OperationId,
    kind: Kind,
    sequence: u32,
    payload: &'a [u8],
    total_bytes: usize,
}

impl<'a> Frame<'a> {
    /// Reads the frame at the start of `bytes`; `None` if there is no whole one.
    fn read(bytes: &'a [u8]) -> Result<Option<Self>, StoreError> {
        let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Ok(None);
        };
        if header[..8] != MAGIC {
            return Ok(None);
        }
        let number =
            |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let length = number(33) as usize;
        if length > MAX_PAYLOAD_BYTES || rest.len() < length + CHECKSUM_BYTES {
            return Ok(None);
        }
        let checked = &bytes[..HEADER_BYTES + length];
        let checksum = &rest[length..length + CHECKSUM_BYTES];
        if blake3::hash(checked).as_bytes() != checksum && !seeded_bug!("torn-frame-accepted") {
            return Ok(None);
        }
        if number(8) > VERSION {
            return Err(StoreError::VersionTooNew {
                what: FILE.to_owned(),
                found: number(8),
                supported: VERSION,
            });
        }
        if number(8) < VERSION {
            let found = number(8);
            return Err(corrupt(format!(
                "its format is {found}, and only {VERSION} is understood"
            )));
        }
        let kind = match header[28] {
            1 => Kind::Staging,
            2 => Kind::Steps,
            3 => Kind::Intent,
            4 => Kind::Done,
            other => return Err(corrupt(format!("a frame is of the unknown kind {other}"))),
        };
        Ok(Some(Self {
            operation: OperationId(header[12..28].try_into().expect("sixteen bytes")),
            kind,
            sequence: number(29),
            payload: &rest[..length],
            total_bytes: HEADER_BYTES + length + CHECKSUM_BYTES,
        }))
    }
}

fn corrupt(detail: impl Into<String>) -> StoreError {
    StoreError::corrupt(FILE, detail)
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    codec::serialize(value, MAX_PAYLOAD_BYTES as u64).map_err(|TooLong| too_long())
}

fn too_long() -> io::Error {
    io::Error::other("a frame of it is too long")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StoreError> {
    codec::deserialize(bytes).ok_or_else(undecodable)
}

fn undecodable() -> StoreError {
    corrupt("a frame cannot be decoded")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Versions that knew what is put back of a repository wrote it as a field of the intent
    #[test]
    fn what_is_put_back_of_a_repository_is_the_last_field_of_an_intent() {
        #[derive(Serialize)]
        struct Earlier {
            plan: PlanId,
            target: SnapshotId,
            steps: u64,
            repository: Option<(u64, String)>,
        }
        let repository = (7, "refs/heads/main".to_owned());
        let intent = Intent {
            plan: "p".repeat(64).parse().unwrap(),
            target: SnapshotId::random(),
            steps: 3,
            repository: Some(encode(&repository).unwrap()),
        };
        let mut earlier = Earlier {
            plan: intent.plan.clone(),
            target: intent.target.clone(),
            steps: 3,
            repository: Some(repository),
        };
        let bytes = encode(&earlier).unwrap();
        assert_eq!(intent.encode().unwrap(), bytes);
        assert_eq!(Intent::decode(&bytes).unwrap(), intent);

        earlier.repository = None;
        let mut bytes = encode(&earlier).unwrap();
        assert_eq!(Intent::decode(&bytes).unwrap().repository, None);
        bytes.push(0);
        let error = Intent::decode(&bytes).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    }

    fn staging() -> Staging {
        Staging {
            workspace_inode: 7,
            directory: b"/somewhere/\xff".to_vec(),
            guard: SnapshotId::random(),
        }
    }

    fn steps(count: u64) -> Vec<Step> {
        let seen = Seen {
            stat: EntryStat {
                size: 1,
                mtime_ns: -5,
                ctime_ns: i64::MAX,
                inode: 3,
                mode: 0o100_644,
            },
            content: Some(ContentId::Sha1([7; 20])),
            is_racy: true,
        };
        (0..count)
            .map(|n| Step {
                path: RelPath::new(format!("dir/{n}").into_bytes()).unwrap(),
                expected: n.is_multiple_of(2).then_some(seen),
                action: match n % 5 {
                    0 => Action::Place { inode: n },
                    1 => Action::Remove,
                    2 => Action::MakeDirectory,
                    3 => Action::RemoveDirectory,
                    _ => Action::SetMode {
                        from: Some(0o600),
                        to: 0o644,
                    },
                },
            })
            .collect()
    }

    fn intent(steps: &[Step]) -> Intent {
        Intent {
            plan: "plan_x".parse().unwrap(),
            target: SnapshotId::random(),
            steps: steps.len() as u64,
            repository: Some(b"what is put back".to_vec()),
        }
    }

    /// The whole journal of a restore, and where its frames end.
    fn whole(store: &Path, steps: &[Step]) -> Vec<u64> {
        let path = store.join(FILE);
        let length = || fs::metadata(&path).unwrap().len();
        let mut ends = Vec::new();
        let mut journal = Journal::begin(
            &Operation::unbounded(),
            store,
            OperationId::random(),
            &staging(),
        )
        .unwrap();
        ends.push(length());
        journal.intend(&intent(steps), steps).unwrap();
        ends.push(length());
        journal.done().unwrap();
        ends.push(length());
        ends
    }

    #[test]
    fn what_was_written_is_read() {
        let store = tempfile::tempdir().unwrap();
        assert!(
            find(&Operation::unbounded(), store.path())
                .unwrap()
                .is_none()
        );
        // Enough for more than one frame of steps.
        let (staging, steps) = (staging(), steps(12_000));
        let intent = intent(&steps);
        let mut journal = Journal::begin(
            &Operation::unbounded(),
            store.path(),
            OperationId::random(),
            &staging,
        )
        .unwrap();
        let found = find(&Operation::unbounded(), store.path())
            .unwrap()
            .unwrap();
        assert_eq!(found.staging.as_ref(), Some(&staging));
        assert!(matches!(found.state, State::Staging));

        journal.intend(&intent, &steps).unwrap();
        let frames = journal.sequence;
        assert!(frames > 3, "{frames}");
        let mut found = find(&Operation::unbounded(), store.path())
            .unwrap()
            .unwrap();
        match found.state {
            State::Intended(read, all) => assert!(read == intent && all == steps),
            other => panic!("{other:?}"),
        }
        found.journal.done().unwrap();
        let found = find(&Operation::unbounded(), store.path())
            .unwrap()
            .unwrap();
        assert!(matches!(found.state, State::Done));
        found.journal.remove().unwrap();
        assert!(
            find(&Operation::unbounded(), store.path())
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_second_journal_is_refused() {
        let store = tempfile::tempdir().unwrap();
        let begin = || {
            Journal::begin(
                &Operation::unbounded(),
                store.path(),
                OperationId::random(),
                &staging(),
            )
        };
        let _first = begin().unwrap();
        let error = begin().unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_journal_that_ends_anywhere_says_what_its_whole_frames_say() {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join(FILE);
        let steps = steps(5);
        let ends = whole(store.path(), &steps);
        let bytes = fs::read(&path).unwrap();
        for length in 0..=bytes.len() {
            for tail in [&[][..], &[0; 100]] {
                fs::write(&path, [&bytes[..length], tail].concat()).unwrap();
                let found = find(&Operation::unbounded(), store.path())
                    .unwrap()
                    .unwrap();
                // Where a checksum ends with zeros, zeros in their place make it whole.
                let zeros = bytes[length..].iter().take_while(|byte| **byte == 0);
                let completed = zeros.count().min(tail.len());
                let length = (length + completed) as u64;
                assert_eq!(found.staging.is_some(), length >= ends[0], "{length}");
                match found.state {
                    State::Staging => assert!(length < ends[1], "{length}"),
                    State::Intended(_, read) => {
                        assert!((ends[1]..ends[2]).contains(&length), "{length}");
                        assert_eq!(read, steps);
                    }
                    State::Done => assert_eq!(length, ends[2]),
                }
            }
        }
    }

    #[test]
    fn what_follows_a_torn_frame_is_readable() {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join(FILE);
        let steps = steps(3);
        let ends = whole(store.path(), &steps);
        let bytes = fs::read(&path).unwrap();
        let torn = usize::try_from(ends[2]).unwrap() - 1;
        fs::write(&path, &bytes[..torn]).unwrap();
        let mut found = find(&Operation::unbounded(), store.path())
            .unwrap()
            .unwrap();
        assert!(matches!(found.state, State::Intended(..)));
        found.journal.done().unwrap();
        let found = find(&Operation::unbounded(), store.path())
            .unwrap()
            .unwrap();
        assert!(matches!(found.state, State::Done));
    }

    #[test]
    fn a_flipped_bit_before_the_last_frame_is_corrupt_and_in_it_a_torn_tail() {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join(FILE);
        let ends = whole(store.path(), &steps(5));
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            fs::write(&path, &damaged).unwrap();
            match find(&Operation::unbounded(), store.path()) {
                Ok(found) => {
                    assert!(at as u64 >= ends[1], "at {at}");
                    assert!(matches!(found.unwrap().state, State::Intended(..)));
                }
                Err(StoreError::Corrupt { .. }) => assert!((at as u64) < ends[1], "at {at}"),
                Err(error) => panic!("at {at}: {error}"),
            }
        }
    }

    #[test]
    fn frames_of_another_restore_behind_it_are_not_its_own() {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join(FILE);
        whole(store.path(), &steps(5));
        let foreign = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let staging = staging();
        Journal::begin(
            &Operation::unbounded(),
            store.path(),
            OperationId::random(),
            &staging,
        )
        .unwrap();
        let own = fs::read(&path).unwrap();
        fs::write(&path, [&own[..], &foreign].concat()).unwrap();
        let found = find(&Operation::unbounded(), store.path())
            .unwrap()
            .unwrap();
        assert_eq!(found.staging, Some(staging));
        assert!(matches!(found.state, State::Staging));
    }

    #[test]
    fn a_newer_version_is_told_and_left_alone() {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join(FILE);
        whole(store.path(), &steps(1));
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 9;
        let length = u32::from_le_bytes(bytes[33..37].try_into().unwrap()) as usize;
        let end = HEADER_BYTES + length;
        let checksum = *blake3::hash(&bytes[..end]).as_bytes();
        bytes[end..end + CHECKSUM_BYTES].copy_from_slice(&checksum);
        fs::write(&path, &bytes).unwrap();
        let error = find(&Operation::unbounded(), store.path()).unwrap_err();
        assert!(
            matches!(error, StoreError::VersionTooNew { found: 9, .. }),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    /// What a journal with these bytes says, as far as it can be compared: how many steps it
    /// intends, or that it is done.
    fn said(bytes: &[u8]) -> Option<(Option<Staging>, Option<Vec<Step>>, bool)> {
        match Contents::read(bytes) {
            Ok(contents) => Some(match contents.state {
                State::Staging => (contents.staging, None, false),
                State::Intended(_, steps) => (contents.staging, Some(steps), false),
                State::Done => (contents.staging, None, true),
            }),
            Err(StoreError::Corrupt { .. } | StoreError::VersionTooNew { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// A frame whose checksum holds, whatever its payload is.
    fn sealed(kind: u8, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = [&MAGIC[..], &VERSION.to_le_bytes(), &[7; 16], &[kind]].concat();
        frame.extend_from_slice(&sequence.to_le_bytes());
        frame.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        frame.extend_from_slice(payload);
        let checksum = blake3::hash(&frame);
        [&frame[..], checksum.as_bytes()].concat()
    }

    #[test]
    fn a_payload_whose_lengths_lie_is_corrupt_before_anything_is_allocated() {
        let absurd = (1_u64 << 60).to_le_bytes();
        let begin = sealed(1, 0, &encode(&staging()).unwrap());
        assert!(said(&begin).is_some());
        // The length of a path, and the number of steps.
        assert!(said(&sealed(1, 0, &[&[0; 8][..], &absurd].concat())).is_none());
        assert!(said(&[begin, sealed(2, 1, &absurd)].concat()).is_none());
    }

    proptest! {
        #[test]
        fn any_flipped_bit_or_cut_leaves_less_of_it_or_makes_it_corrupt(
            count in 0_u64..6,
            at in any::<prop::sample::Index>(),
            bit in 0_u32..8,
        ) {
            let store = tempfile::tempdir().unwrap();
            let steps = steps(count);
            whole(store.path(), &steps);
            let bytes = fs::read(store.path().join(FILE)).unwrap();
            let at = at.index(bytes.len());
            let mut damaged = bytes.clone();
            damaged[at] ^= 1_u8 << bit;
            for bytes in [&bytes[..at], &damaged] {
                // Never another step, and never done before it is.
                if let Some((_, read, is_done)) = said(bytes) {
                    prop_assert!(!is_done);
                    prop_assert!(read.is_none_or(|read| read == steps));
                }
            }
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            kind in 0_u8..6,
        ) {
            said(&bytes);
            let begin = sealed(1, 0, &encode(&staging()).unwrap());
            // The same with a checksum that holds.
            said(&sealed(kind, 0, &bytes));
            said(&[&begin[..], &sealed(kind, 1, &bytes)].concat());
            said(&[&begin[..], &bytes].concat());
        }
    }

    #[test]
    fn a_frame_that_claims_to_be_huge_costs_nothing() {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join(FILE);
        whole(store.path(), &steps(1));
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(HEADER_BYTES);
        bytes[33..37].copy_from_slice(&u32::MAX.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let found = find(&Operation::unbounded(), store.path())
            .unwrap()
            .unwrap();
        assert_eq!(found.staging, None);
        // A sparse file of absurd size is refused by its size alone.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(MAX_JOURNAL_BYTES + 1).unwrap();
        assert!(matches!(
            find(&Operation::unbounded(), store.path()),
            Err(StoreError::Corrupt { .. })
        ));
    }
}
