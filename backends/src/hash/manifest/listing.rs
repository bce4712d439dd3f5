//! A manifest as a capture has it: in the directories of its stat cache, without a copy.

use std::cmp::Ordering;
use std::convert::Infallible;

use serde::ser::{Error as _, SerializeSeq as _};
use serde::{Serialize, Serializer};

use super::{Digest, FORMAT, Item, Manifest, What};
use crate::codec::TooLong;
use crate::hash::content;
use crate::interrupted::Interrupted;
use crate::operation::Operation;
use crate::pace::Pace;
use crate::path::RelPath;
use crate::worktree::stat_cache::{CachedDirectory, Directories};

/// The items of a manifest, in its order, from the directories that a capture saw.
pub(crate) struct Listing<'c> {
    op: &'c Operation,
    /// Sorted by path.
    directories: Vec<(&'c RelPath, &'c CachedDirectory)>,
    /// By directory: the numbers of those right below it.
    below: Vec<Vec<u32>>,
    items: usize,
}

/// A directory that is being gone through.
struct Frame {
    directory: u32,
    next_file: usize,
    /// The directories below it, each twice, the last first: as an item, and what is in it, which
    /// sorts by its name with a slash.
    due: Vec<(u32, bool)>,
    /// How much of the path is its own, with the slash after it.
    path_bytes: usize,
}

impl<'c> Listing<'c> {
    /// Of all directories that a capture saw, the workspace itself among them.
    pub(crate) fn of(op: &'c Operation, directories: &'c Directories) -> Self {
        let directories = directories.iter().map(|(path, found)| (path, &**found));
        let mut directories: Vec<(&RelPath, &CachedDirectory)> = directories.collect();
        directories.sort_unstable_by_key(|(path, _)| *path);
        let mut below = vec![Vec::new(); directories.len()];
        let mut items = 0;
        for (at, (path, directory)) in directories.iter().enumerate() {
            let captured = directory.entries.iter().filter(|(_, e)| e.is_captured());
            items += captured.count();
            if let Some(parent) = path.parent() {
                items += 1;
                let found = directories.binary_search_by(|(other, _)| (*other).cmp(&parent));
                let parent = found.expect("a directory is seen in the one above it");
                below[parent].push(u32::try_from(at).expect("fewer than four billion"));
            }
        }
        Self {
            op,
            directories,
            below,
            items,
        }
    }

    /// Names the manifest by its content, as [`Manifest::digest`] does.
    pub(crate) fn digest(&self) -> Result<blake3::Hash, Interrupted> {
        let mut digest = Digest::new(self.items);
        let mut pace = Pace::of(self.op);
        self.try_each(&mut |path, what| {
            digest.add(path, what);
            pace.step()
        })?;
        Ok(digest.finish())
    }

    /// The bytes of the file that keeps the manifest; an error if they are more than
    /// [`Manifest::MAX_FILE_BYTES`], or if the work should stop.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, TooLong> {
        FORMAT.encode(self)
    }

    /// The same as a value that can be asked for paths.
    pub(crate) fn to_manifest(&self) -> Manifest {
        let mut items = Vec::with_capacity(self.items);
        let Ok(()) = self.try_each(&mut |path, what| {
            let path = RelPath::new(path).expect("it is made of names");
            items.push(Item { path, what });
            Ok::<_, Infallible>(())
        });
        Manifest { items }
    }

    /// Calls `take` with every path and what is there, in the order of the paths' bytes, up to the
    /// first error.
    fn try_each<E>(&self, take: &mut impl FnMut(&[u8], What) -> Result<(), E>) -> Result<(), E> {
        let Some(root) = self.directories.iter().position(|(path, _)| path.is_root()) else {
            return Ok(());
        };
        let mut path = Vec::new();
        let mut frames = vec![self.frame(u32::try_from(root).expect("few"), 0)];
        while let Some(frame) = frames.last_mut() {
            path.truncate(frame.path_bytes);
            let (_, directory) = self.directories[frame.directory as usize];
            // Files up to what is due next.
            while frame.next_file < directory.entries.len() {
                let (name, entry) = directory.entries.get(frame.next_file);
                if let Some((next, is_inside)) = frame.due.last()
                    && order((name, false), (self.name(*next), *is_inside)).is_gt()
                {
                    break;
                }
                frame.next_file += 1;
                if !entry.is_captured() {
                    continue;
                }
                let digest = content::digest(&entry.id).expect("this backend's ids are blake3");
                path.truncate(frame.path_bytes);
                path.extend_from_slice(name);
                let what = What::Content {
                    kind: entry.kind,
                    digest,
                    size: entry.stat.size,
                };
                take(&path, what)?;
            }
            let Some((next, is_inside)) = frame.due.pop() else {
                frames.pop();
                continue;
            };
            path.truncate(frame.path_bytes);
            path.extend_from_slice(self.name(next));
            if is_inside {
                path.push(b'/');
                frames.push(self.frame(next, path.len()));
            } else {
                take(&path, What::Directory)?;
            }
        }
        Ok(())
    }

    fn frame(&self, directory: u32, path_bytes: usize) -> Frame {
        let below = &self.below[directory as usize];
        let mut due: Vec<(u32, bool)> = below
            .iter()
            .flat_map(|at| [(*at, false), (*at, true)])
            .collect();
        let key = |(at, is_inside): &(u32, bool)| (self.name(*at), *is_inside);
        due.sort_unstable_by(|a, b| order(key(b), key(a)));
        Frame {
            directory,
            next_file: 0,
            due,
            path_bytes,
        }
    }

    fn name(&self, directory: u32) -> &'c [u8] {
        self.directories[directory as usize].0.name()
    }
}

/// How two names sort where what is inside a directory has a slash after its name.
fn order((a, a_is_inside): (&[u8], bool), (b, b_is_inside): (&[u8], bool)) -> Ordering {
    let common = a.len().min(b.len());
    a[..common].cmp(&b[..common]).then_with(|| {
        let rest = |name: &'_ [u8], is_inside: bool| {
            name.get(common).copied().or(is_inside.then_some(b'/'))
        };
        // Names have no slashes, so one more byte decides.
        let (a_rest, b_rest) = (rest(a, a_is_inside), rest(b, b_is_inside));
        a_rest.cmp(&b_rest).then(a.len().cmp(&b.len()))
    })
}

/// As the bytes of a [`Manifest`].
impl Serialize for Listing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return Err(S::Error::custom("a manifest is no text"));
        }
        let mut items = serializer.serialize_seq(Some(self.items))?;
        let mut pace = Pace::of(self.op);
        self.try_each(&mut |path, what| {
            pace.step().map_err(S::Error::custom)?;
            items.serialize_element(&(PathBytes(path), what))
        })?;
        items.end()
    }
}

/// As a [`RelPath`] is written.
struct PathBytes<'a>(&'a [u8]);

impl Serialize for PathBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::tree::{ContentId, EntryKind};
    use crate::worktree::stat_cache::{CachedEntry, EntryStat, Flags};

    /// The directories that hold `files`, and the manifest that sorting all paths gives.
    fn seen(files: &[RelPath]) -> (BTreeMap<RelPath, CachedDirectory>, Manifest) {
        let mut directories = BTreeMap::from([(RelPath::root(), CachedDirectory::default())]);
        let mut contents: BTreeMap<&RelPath, u64> = BTreeMap::new();
        for (number, path) in files.iter().enumerate() {
            let mut above = path.parent();
            while let Some(directory) = above {
                above = directory.parent();
                directories.entry(directory).or_default();
            }
            contents.insert(path, number as u64);
        }
        // What is a directory is no file.
        contents.retain(|path, _| !directories.contains_key(*path));
        let mut items: Vec<Item> = Vec::new();
        for (path, number) in contents {
            let digest = *blake3::hash(&number.to_le_bytes()).as_bytes();
            let kind = EntryKind::Executable;
            let directory = directories.get_mut(&path.parent().unwrap()).unwrap();
            let entry = CachedEntry {
                kind,
                id: ContentId::Blake3(digest),
                stat: EntryStat {
                    size: number,
                    ..EntryStat::default()
                },
                flags: Flags::default(),
            };
            directory.entries.push(path.name(), entry);
            items.push(Item {
                path: path.clone(),
                what: What::Content {
                    kind,
                    digest,
                    size: number,
                },
            });
        }
        for path in directories.keys().filter(|path| !path.is_root()) {
            items.push(Item {
                path: path.clone(),
                what: What::Directory,
            });
        }
        (directories, Manifest::new(items))
    }

    fn check(files: &[RelPath]) {
        let (directories, manifest) = seen(files);
        let shared = |(path, found)| (path, Arc::new(found));
        let directories = directories.into_iter().map(shared).collect();
        let op = Operation::unbounded();
        let listing = Listing::of(&op, &directories);
        assert_eq!(listing.to_manifest(), manifest);
        assert_eq!(listing.digest(), Ok(manifest.digest()));
        assert_eq!(listing.encode().unwrap(), manifest.encode().unwrap());
    }

    #[test]
    fn names_that_sort_between_a_directory_and_what_is_in_it_are_in_their_place() {
        let names = [
            "a/x", "a-b", "a.c/y", "a!/z", "a0", "ab/a/b/c", "b", "a/x-/q", "a/x.y", "\u{ff}",
        ];
        let paths: Vec<_> = names
            .map(|n| RelPath::new(n).unwrap())
            .into_iter()
            .collect();
        check(&paths);
        check(&[]);
    }

    #[test]
    fn more_than_is_hashed_at_a_time_has_the_digest_of_the_whole() {
        let name = |n: u32| RelPath::new(format!("d{}/{n:0200}", n % 7)).unwrap();
        let paths: Vec<_> = (0..2000).map(name).collect();
        check(&paths);
        // The definition, piece by piece.
        let manifest = seen(&paths).1;
        let mut plain = blake3::Hasher::new();
        plain.update(b"stillframe manifest 1\n");
        plain.update(&(manifest.items.len() as u64).to_le_bytes());
        for item in &manifest.items {
            plain.update(&(item.path.as_bytes().len() as u64).to_le_bytes());
            plain.update(item.path.as_bytes());
            match item.what {
                What::Directory => plain.update(b"d"),
                What::Content { digest, size, .. } => plain
                    .update(b"x")
                    .update(&digest)
                    .update(&size.to_le_bytes()),
            };
        }
        assert_eq!(manifest.digest(), plain.finalize());
    }

    proptest! {
        #[test]
        fn a_listing_is_the_manifest_that_sorting_gives(
            names in prop::collection::vec("[a!\\-./0\u{e4}]{1,3}(/[a!\\-0]{1,2}){0,4}", 0..40)
        ) {
            let paths: Vec<_> = names.iter().filter_map(|n| RelPath::new(n.as_str()).ok()).collect();
            check(&paths);
        }
    }
}
