//! Extended attributes and access lists of files. Snapshots do not have them; a restored file gets
//! those of the file that it replaces.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::descriptor;
use crate::faults::Effect;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::root::Root;

/// The access list of a file (acl(5)): who may do what beside owner, group and others.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// What belongs to users. Other attributes are the system's to give: a label of SELinux follows
/// from the place, and capabilities must not come to content that they were not given to.
const OF_USERS: &[u8] = b"user.";

/// The most that the kernel lets the names of a file's attributes, or one value, have (xattr(7)).
const MAX_BYTES: usize = 64 << 10;

/// The attributes of a file that its successor keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Name and value.
    all: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// Those of an open file. A file system that keeps none has none.
    pub fn of(file: impl AsFd) -> rustix::io::Result<Self> {
        let mut all = Vec::new();
        for name in names(&file)? {
            match value(&file, &name) {
                Ok(value) => all.push((name, value)),
                // Somebody took it away since.
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Self { all })
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Gives them to an open file, known as `path`; answers with the names of those that it does
    /// not take, and why.
    ///
    /// An access list comes with permission bits, so these are to be set afterwards.
    pub fn give_to(
        &self,
        op: &Operation,
        file: impl AsFd,
        path: &Path,
    ) -> Vec<(String, io::Error)> {
        let give = |name: &[u8], value: &[u8]| {
            op.effect(Effect::Write(path))?;
            Ok(rustix::fs::fsetxattr(
                &file,
                name,
                value,
                XattrFlags::empty(),
            )?)
        };
        let given = self
            .all
            .iter()
            .map(|(name, value)| (name, give(name, value)));
        let failed = given.filter_map(|(name, given)| Some((printable(name), given.err()?)));
        failed.collect()
    }
}

/// The names of the attributes of the file at `path`, for a person. None are told of what is no
/// file, or may not be opened.
pub fn names_at(root: &Root, path: &RelPath) -> Vec<String> {
    let found = root
        .open_parent(path)
        .and_then(|(parent, name)| descriptor::open_file_at(parent.as_fd(), name))
        .and_then(names);
    let names = found.unwrap_or_default();
    names.iter().map(|name| printable(name)).collect()
}

fn printable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The names of the attributes of an open file that are users' own, or its access list.
fn names(file: impl AsFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut list = vec![0; 1024];
    let length = loop {
        match rustix::fs::flistxattr(&file, &mut list[..]) {
            Ok(length) => break length,
            Err(Errno::RANGE) if list.len() < MAX_BYTES => list.resize(MAX_BYTES, 0),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => break 0,
            Err(errno) => return Err(errno),
        }
    };
    let names = list[..length].split(|byte| *byte == 0);
    let is_kept = |name: &&[u8]| name.starts_with(OF_USERS) || *name == ACCESS_LIST;
    Ok(names.filter(is_kept).map(<[u8]>::to_vec).collect())
}

fn value(file: impl AsFd, name: &[u8]) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 1024];
    loop {
        match rustix::fs::fgetxattr(&file, name, &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                return Ok(value);
            }
            Err(Errno::RANGE) if value.len() < MAX_BYTES => value.resize(MAX_BYTES, 0),
            Err(errno) => return Err(errno),
        }
    }
}
