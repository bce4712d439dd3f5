//! Which paths of a work tree are captured: git's ignore rules, the host's rules, and the
//! exceptions to them.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::backend::SnapshotOptions;
use crate::coverage::OmissionReason;
use crate::descriptor;
use crate::dot_git::is_dot_git;
use crate::error::PathError;
use crate::git::ObjectId;
use crate::git::attributes::{AttributeFile, AttributeStack, Trust};
use crate::git::keep::{Keep, KeptFor};
use crate::git::object_id::sha1;
use crate::git::repository::OutsideRules;
use crate::git::repository::{UserConfig, UserRepository};
use crate::git::store::Store;
use crate::git::tree_object::{ItemKind, Trees as _};
use crate::host_rules::HostRules;
use crate::ignore_rules::{IgnoreStack, RuleFile};
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;
use crate::worktree::clock::Clock;
use crate::worktree::root::Root;
use crate::worktree::stat_cache::{CachedRules, Delta, EntryStat, Flags, StatCache, is_racy};
use crate::worktree::walk::{Omissions, Rules, Verdict};

/// The file in which a directory says what to ignore in it and below.
pub(crate) const IGNORE_FILE: &[u8] = b".gitignore";

/// The file in which a directory gives attributes to the paths in it and below.
pub(crate) const ATTRIBUTES_FILE: &[u8] = b".gitattributes";

/// A rule file larger than this is no rule file: its rules are not read.
const MAX_RULE_FILE_BYTES: u64 = 1 << 20;

/// How many files without rules are named in the warnings.
const MAX_WARNINGS: usize = 10;

/// The rules of one capture.
pub(crate) struct GitRules<'a> {
    op: &'a Operation,
    root: &'a Root,
    repository: Option<&'a UserRepository>,
    store: &'a Store,
    cache: &'a StatCache,
    options: &'a SnapshotOptions,
    host: HostRules,
    ignore: IgnoreStack,
    outside: Vec<OutsideRules>,
    above: Vec<(RelPath, OutsideRules)>,
    attributes: AttributeStack,
    keep: &'a Keep,
    clock: Clock,
    rule_files: Mutex<RuleFiles>,
    /// The ignore files that no rules are read from, and why.
    unread: Mutex<BTreeMap<RelPath, &'static str>>,
    /// Why some rules could not be read; without them no decision is right.
    failure: Mutex<Option<SnapshotError>>,
    has_failed: AtomicBool,
    has_kept: AtomicBool,
    /// Directories of which it is not known what earlier snapshots had in them, and why.
    forgotten: Mutex<BTreeMap<RelPath, String>>,
}

/// The rule files of the workspace that this capture looked at.
#[derive(Default)]
struct RuleFiles {
    all: HashMap<RelPath, CachedRules>,
    has_new: bool,
}

/// The rules in one directory, read only when they are needed.
pub(crate) struct GitScope {
    above: Option<Arc<GitScope>>,
    path: RelPath,
    has_ignore_file: bool,
    has_attributes_file: bool,
    ignore: OnceLock<IgnoreStack>,
    attributes: OnceLock<AttributeStack>,
    is_ignored: OnceLock<bool>,
    is_excluded: OnceLock<bool>,
    kept: OnceLock<Vec<(KeptFor, KeptDirectory)>>,
}

/// What an earlier tree has in a directory; for a directory in it, its tree.
type KeptDirectory = HashMap<Vec<u8>, Option<ObjectId>>;

impl<'a> GitRules<'a> {
    pub(crate) fn new(
        op: &'a Operation,
        root: &'a Root,
        repository: Option<&'a UserRepository>,
        store: &'a Store,
        cache: &'a StatCache,
        options: &'a SnapshotOptions,
        keep: &'a Keep,
    ) -> Result<Self, SnapshotError> {
        let host = HostRules::new(&options.ignore).map_err(SnapshotError::InvalidOptions)?;
        let parse =
            |file: &OutsideRules| RuleFile::parse(file.origin.clone(), file.text.as_bytes());
        let user = UserConfig::read(&|name| std::env::var_os(name), repository);
        let outside = match repository {
            Some(repository) => repository.outside_rules(&user)?,
            None => Vec::new(),
        };
        let above: Vec<(RelPath, OutsideRules)> = repository
            .map(|r| r.files_above_scope(".gitignore", MAX_RULE_FILE_BYTES))
            .unwrap_or_default()
            .into_iter()
            .map(|(directory, text)| {
                let origin = directory.join(IGNORE_FILE).to_string();
                (
                    directory,
                    OutsideRules {
                        origin,
                        text: String::from_utf8_lossy(&text).into(),
                    },
                )
            })
            .collect();
        let scope = repository.map(|r| r.scope().clone()).unwrap_or_default();
        let ignore = IgnoreStack::new_below(
            &scope,
            outside.iter().map(parse).collect(),
            above
                .iter()
                .map(|(directory, file)| (directory.clone(), parse(file)))
                .collect(),
        );
        Ok(Self {
            op,
            root,
            repository,
            store,
            cache,
            options,
            host,
            ignore,
            outside,
            above,
            attributes: attributes(repository, &user)?,
            keep,
            clock: Clock::of(root),
            rule_files: Mutex::default(),
            unread: Mutex::default(),
            failure: Mutex::default(),
            has_failed: AtomicBool::new(false),
            has_kept: AtomicBool::new(false),
            forgotten: Mutex::default(),
        })
    }

    /// The ignore rules from files outside of the work tree, the weakest first.
    pub(crate) fn outside(&self) -> &[OutsideRules] {
        &self.outside
    }

    /// The ignore rules of the directories above the workspace, each with its directory.
    pub(crate) fn above(&self) -> &[(RelPath, OutsideRules)] {
        &self.above
    }

    /// What is to be said of the ignore files that no rules were read from, though somebody asked
    /// for them: a clause for each of the first few. Of one that is among `omissions` it is said
    /// there.
    pub(crate) fn warnings(&self, omissions: &Omissions) -> Vec<String> {
        let mut unread = lock(&self.unread);
        unread.retain(|path, _| !omissions.contains_key(path));
        let name =
            |(path, why): (&RelPath, &&str)| format!("the rules in {path} were not read: {why}");
        let mut warnings: Vec<String> = unread.iter().take(MAX_WARNINGS).map(name).collect();
        if let Some(more) = unread
            .len()
            .checked_sub(MAX_WARNINGS)
            .filter(|more| *more > 0)
        {
            warnings.push(format!("the rules in {more} more files were not read"));
        }
        let forgotten = lock(&self.forgotten);
        warnings.extend(forgotten.iter().take(MAX_WARNINGS).map(|(directory, why)| {
            let place = match directory.is_root() {
                true => "the workspace".to_owned(),
                false => directory.to_string(),
            };
            format!(
                "what is ignored in {place} was left out also where an earlier snapshot has it: {why}; \
                 verifying the snapshots tells what is damaged"
            )
        }));
        warnings
    }

    /// Whether anything was kept that a rule would have left out.
    pub(crate) fn has_kept(&self) -> bool {
        self.has_kept.load(Ordering::Relaxed)
    }

    /// Reads the rules of every directory that has another ignore file in `delta`, also where no
    /// decision went by them. Where a capture is not published, its new texts are in no store.
    pub(crate) fn read_changed(&self, delta: &Delta) -> Result<(), SnapshotError> {
        for (path, directory) in &delta.directories {
            if directory.entry(IGNORE_FILE).is_some()
                && !lock(&self.rule_files).all.contains_key(path)
            {
                self.ignore_file(path)?;
            }
        }
        Ok(())
    }

    /// The rule files that were looked at, and whether any was read.
    pub(crate) fn into_rule_files(self) -> (HashMap<RelPath, CachedRules>, bool) {
        let files = self
            .rule_files
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        (files.all, files.has_new)
    }

    /// Decides about a path that the index does not have.
    fn decide(&self, scope: &GitScope, path: &RelPath, is_directory: bool) -> Verdict {
        let is_included = self
            .options
            .include
            .iter()
            .any(|p| path.starts_with(p) || (is_directory && p.starts_with(path)));
        if is_included {
            return Verdict::Capture;
        }
        let is_excluded =
            self.is_excluded(scope) || self.host.excludes(path, is_directory).is_some();
        let reason = if is_excluded {
            OmissionReason::Excluded
        } else if self.is_ignored(scope)
            || self.ignore(scope).decide(path, is_directory).is_ignored()
        {
            OmissionReason::Ignored
        } else {
            return Verdict::Capture;
        };
        let is_kept = self.kept(scope).iter().any(|(kept_for, names)| {
            // What the host leaves out no session goes on with.
            let counts = *kept_for == KeptFor::Goal || !is_excluded;
            counts && names.contains_key(path.name())
        });
        if is_kept {
            self.has_kept.store(true, Ordering::Relaxed);
            Verdict::Capture
        } else {
            Verdict::Omit(reason)
        }
    }

    /// What the snapshots that this one has to agree with captured in the directory.
    fn kept<'s>(&self, scope: &'s GitScope) -> &'s [(KeptFor, KeptDirectory)] {
        scope.inherited(
            |s| &s.kept,
            |scope, above| {
                let trees: Vec<(KeptFor, ObjectId)> = match above {
                    None => self.keep.trees.clone(),
                    Some(above) => above
                        .iter()
                        .filter_map(|(kept_for, names)| {
                            Some((*kept_for, (*names.get(scope.path.name())?)?))
                        })
                        .collect(),
                };
                let names = |tree| {
                    let items = self.store.tree(self.op, &tree)?;
                    Ok(items
                        .into_iter()
                        .filter(|item| item.kind != ItemKind::Submodule)
                        .map(|item| {
                            let tree = (item.kind == ItemKind::Directory).then_some(item.id);
                            (item.name, tree)
                        })
                        .collect())
                };
                let known = |tree| match names(tree) {
                    // It must not keep anything else from being captured, which may be all there
                    // is.
                    Err(StoreError::Corrupt { what, detail }) => {
                        let why = format!("{what} is corrupt: {detail}");
                        lock(&self.forgotten).insert(scope.path.clone(), why);
                        None
                    }
                    names => self.noted(names.map_err(SnapshotError::from)),
                };
                trees
                    .into_iter()
                    .filter_map(|(kept_for, tree)| Some((kept_for, known(tree)?)))
                    .collect()
            },
        )
    }

    /// Whether the host excludes the directory itself, and it was entered for the sake of something
    /// in it.
    fn is_excluded(&self, scope: &GitScope) -> bool {
        *scope.inherited(
            |s| &s.is_excluded,
            |scope, above| {
                above.is_some_and(|above| *above || self.host.excludes(&scope.path, true).is_some())
            },
        )
    }

    /// Whether the directory itself is ignored, and was entered for the sake of something in it.
    fn is_ignored(&self, scope: &GitScope) -> bool {
        *scope.inherited(
            |s| &s.is_ignored,
            |scope, above| {
                let Some((above, is_ignored)) = scope.above.as_deref().zip(above) else {
                    return false;
                };
                *is_ignored || self.ignore(above).decide(&scope.path, true).is_ignored()
            },
        )
    }

    /// Keeps a failure until the next decision, which there is none then.
    fn noted<T>(&self, result: Result<T, SnapshotError>) -> Option<T> {
        result
            .map_err(|error| {
                lock(&self.failure).get_or_insert(error);
                self.has_failed.store(true, Ordering::Relaxed);
            })
            .ok()
    }

    /// Stops the walk if anything that the decisions so far went by could not be read;
    /// [`GitRules::failure`] says what.
    fn check(&self) -> Result<(), SnapshotError> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(Interrupted::Cancelled.into());
        }
        Ok(())
    }

    /// Why the rules have stopped the walk, if they have.
    pub(crate) fn failure(&self) -> Option<SnapshotError> {
        lock(&self.failure).take()
    }

    fn ignore<'s>(&self, scope: &'s GitScope) -> &'s IgnoreStack {
        scope.inherited(
            |s| &s.ignore,
            |scope, above| {
                let file = scope
                    .has_ignore_file
                    .then(|| self.noted(self.ignore_file(&scope.path)).flatten())
                    .flatten();
                above.unwrap_or(&self.ignore).descend(&scope.path, file)
            },
        )
    }

    fn attributes<'s>(&self, scope: &'s GitScope) -> &'s AttributeStack {
        scope.inherited(
            |s| &s.attributes,
            |scope, above| {
                let files = self.noted(self.attribute_files(scope));
                above
                    .unwrap_or(&self.attributes)
                    .descend(&scope.path, files.unwrap_or_default())
            },
        )
    }

    /// The attributes that the directory gives today, and those that the index has: a file was
    /// perhaps checked out under the latter. What cannot be known may be anything.
    fn attribute_files(&self, scope: &GitScope) -> Result<Vec<AttributeFile>, SnapshotError> {
        let mut files = Vec::new();
        if scope.has_attributes_file {
            match self.read(&scope.path, ATTRIBUTES_FILE)? {
                RuleText::Read(_, text) => files.push(AttributeFile::parse(&text)),
                RuleText::Forbidden | RuleText::TooLarge => files.push(unknown_attributes()),
                RuleText::None | RuleText::Link => {}
            }
        }
        let Some(repository) = self.repository else {
            return Ok(files);
        };
        let path = scope.path.join(ATTRIBUTES_FILE);
        let named = self
            .cache
            .entry(&path)
            .filter(|e| e.flags.has(Flags::FROM_INDEX) || e.flags.has(Flags::AS_INDEXED));
        let others = self.cache.index_only.get(&path).into_iter().flatten();
        for id in named
            .map(|e| &e.id)
            .into_iter()
            .chain(others)
            .filter_map(sha1)
        {
            files.push(
                match repository.read_object(self.op, id, MAX_RULE_FILE_BYTES) {
                    Ok(Some((_, text))) => AttributeFile::parse(&text),
                    Ok(None) | Err(_) => unknown_attributes(),
                },
            );
        }
        Ok(files)
    }

    /// The rules of the directory's `.gitignore`; `None` if it is nothing that rules are read from.
    fn ignore_file(&self, directory: &RelPath) -> Result<Option<RuleFile>, SnapshotError> {
        let known = self.cache.rule_files.get(directory);
        let is_unchanged = |known: &CachedRules| {
            let fd = self.root.open_directory(directory).ok()?;
            let now = EntryStat::of(&descriptor::lstat_at(fd.as_fd(), IGNORE_FILE).ok()?);
            (known.stat == now && !known.is_racy).then_some(())
        };
        let (file, is_new) = match known.filter(|known| is_unchanged(known).is_some()) {
            Some(known) => (known.clone(), false),
            None => {
                let mut before_ns = self.clock.now_ns();
                let mut read = self.read(directory, IGNORE_FILE)?;
                if let RuleText::Read(stat, _) = &read
                    && self.clock.settle(self.op, stat, before_ns)
                {
                    before_ns = self.clock.now_ns();
                    read = self.read(directory, IGNORE_FILE)?;
                }
                let (stat, text) = match read {
                    RuleText::Read(stat, text) => (stat, text),
                    other => {
                        self.note_unread(directory, &other);
                        return Ok(None);
                    }
                };
                let is_racy = is_racy(&stat, before_ns);
                (
                    CachedRules {
                        stat,
                        is_racy,
                        text,
                    },
                    true,
                )
            }
        };
        let rules = RuleFile::parse(directory.join(IGNORE_FILE).to_string(), &file.text);
        let mut files = lock(&self.rule_files);
        files.has_new |= is_new;
        files.all.insert(directory.clone(), file);
        Ok(Some(rules))
    }

    /// Remembers that a directory has an ignore file without rules.
    fn note_unread(&self, directory: &RelPath, found: &RuleText) {
        let why = match found {
            RuleText::Link => "it is a link",
            RuleText::TooLarge => "it is larger than 1 MiB",
            RuleText::Forbidden => "it may not be opened",
            RuleText::Read(..) | RuleText::None => return,
        };
        lock(&self.unread).insert(directory.join(IGNORE_FILE), why);
    }

    /// Reads a rule file: a regular one, not too large, reached through no link.
    fn read(&self, directory: &RelPath, name: &[u8]) -> Result<RuleText, SnapshotError> {
        use std::io::Read as _;
        let path = directory.join(name);
        let failed = |operation, source: std::io::Error| SnapshotError::Unreadable {
            context: format!("the rules in {path} could not be read"),
            source: PathError::at(operation, self.root.disk_path(&path))(source),
        };
        let opened = self.root.open_directory(directory).and_then(|fd| {
            // Not opened to find out: opening a device does something.
            match descriptor::lstat_at(fd.as_fd(), name)?.file_type() {
                FileType::RegularFile => descriptor::open_file_at(fd.as_fd(), name),
                FileType::Symlink => Err(Errno::LOOP),
                _ => Err(Errno::NODEV),
            }
        });
        let file = match opened {
            Ok(file) => file,
            Err(Errno::LOOP) => return Ok(RuleText::Link),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NODEV | Errno::XDEV) => {
                return Ok(RuleText::None);
            }
            Err(Errno::ACCESS | Errno::PERM | Errno::AGAIN) => return Ok(RuleText::Forbidden),
            Err(errno) => return Err(failed("open", errno.into())),
        };
        let stat = descriptor::fstat(&file).map_err(|errno| failed("look at", errno.into()))?;
        if stat.file_type() != FileType::RegularFile {
            return Ok(RuleText::None);
        }
        if stat.size > MAX_RULE_FILE_BYTES {
            return Ok(RuleText::TooLarge);
        }
        let mut text = Vec::new();
        let read = file.take(MAX_RULE_FILE_BYTES).read_to_end(&mut text);
        if !seeded_bug!("read-error-is-end") {
            read.map_err(|source| failed("read", source))?;
        }
        Ok(RuleText::Read(EntryStat::of(&stat), text))
    }
}

/// What became of reading a rule file.
enum RuleText {
    Read(EntryStat, Vec<u8>),
    /// There is none, or something that is not read.
    None,
    /// It is a link, which is not followed.
    Link,
    Forbidden,
    TooLarge,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic left behind is not used: the walk that it happened in has no result.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GitScope {
    /// What `cell` holds, which is made of what it holds in the directory above, if it was not
    /// before. From the top down, as a directory may lie deeper than a stack does.
    fn inherited<'s, T>(
        &'s self,
        cell: impl Fn(&'s Self) -> &'s OnceLock<T>,
        make: impl Fn(&'s Self, Option<&T>) -> T,
    ) -> &'s T {
        let mut missing = Vec::new();
        let mut at = Some(self);
        let mut known = None;
        while let Some(scope) = at {
            known = cell(scope).get();
            if known.is_some() {
                break;
            }
            missing.push(scope);
            at = scope.above.as_deref();
        }
        for scope in missing.into_iter().rev() {
            known = Some(cell(scope).get_or_init(|| make(scope, known)));
        }
        known.expect("its own was made last")
    }

    fn new(
        above: Option<&Arc<Self>>,
        path: &RelPath,
        has_ignore_file: bool,
        has_attributes_file: bool,
    ) -> Self {
        Self {
            above: above.cloned(),
            path: path.clone(),
            has_ignore_file,
            has_attributes_file,
            ignore: OnceLock::new(),
            attributes: OnceLock::new(),
            is_ignored: OnceLock::new(),
            is_excluded: OnceLock::new(),
            kept: OnceLock::new(),
        }
    }
}

impl Drop for GitScope {
    /// One after the other, where the compiler would go down the whole chain.
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(mut scope) = above.and_then(Arc::into_inner) {
            above = scope.above.take();
        }
    }
}

/// Stands for attributes that cannot be read: they may ask for anything.
fn unknown_attributes() -> AttributeFile {
    AttributeFile::parse(b"* filter=unknown\n")
}

/// The attributes that hold before the workspace's own directories say anything.
fn attributes(
    repository: Option<&UserRepository>,
    user: &UserConfig,
) -> Result<AttributeStack, SnapshotError> {
    let Some(repository) = repository else {
        return Ok(AttributeStack::new(Vec::new()));
    };
    let outside = repository.outside_attributes(user)?;
    // Which of them wins plays no part: the least trust that any of them leaves is what counts.
    let outside = outside
        .weakest
        .iter()
        .chain(&outside.strongest)
        .map(|file| AttributeFile::parse(file.text.as_bytes()))
        .chain(outside.may_have_others.then(unknown_attributes))
        .collect();
    let above = repository
        .files_above_scope(".gitattributes", MAX_RULE_FILE_BYTES)
        .into_iter()
        .map(|(directory, text)| (directory, AttributeFile::parse(&text)))
        .collect();
    Ok(AttributeStack::new_below(
        repository.scope(),
        outside,
        above,
    ))
}

impl Rules for GitRules<'_> {
    type Scope = GitScope;

    fn enter(
        &self,
        above: Option<&Arc<GitScope>>,
        path: &RelPath,
        has: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Arc<GitScope>, SnapshotError> {
        Ok(Arc::new(GitScope::new(
            above,
            path,
            has(IGNORE_FILE),
            has(ATTRIBUTES_FILE),
        )))
    }

    fn judge(
        &self,
        scope: &GitScope,
        path: &RelPath,
        is_directory: bool,
    ) -> Result<Verdict, SnapshotError> {
        let verdict = self.decide(scope, path, is_directory);
        self.check()?;
        Ok(verdict)
    }

    fn is_own(&self, path: &RelPath) -> bool {
        path.as_bytes() == b".git"
    }

    fn forbids(&self, name: &[u8], _is_directory: bool) -> Option<OmissionReason> {
        if name == b".git" {
            return Some(OmissionReason::GitDir);
        }
        is_dot_git(name).then_some(OmissionReason::Unrepresentable)
    }

    fn are_in(&self, name: &[u8]) -> bool {
        name == IGNORE_FILE || name == ATTRIBUTES_FILE
    }

    fn adopts(&self, scope: &GitScope, path: &RelPath) -> Result<bool, SnapshotError> {
        // Without a repository nothing vouches for what its index said.
        if self.repository.is_none() {
            return Ok(false);
        }
        let trust = self.attributes(scope).trust(path);
        self.check()?;
        Ok(trust == Trust::AsIs)
    }
}
