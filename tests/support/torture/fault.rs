//! What can be done to a system call.

use std::fmt;

use nix::errno::Errno;

/// What is done to one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It is not made, and answers with this error.
    Fails(Code),
    /// It is made with half of the bytes that were asked for, which the kernel is free to do.
    Short,
    /// The process is killed when it is about to make it.
    Kill,
}

/// The errors that are injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// `EIO`: the device does not do it.
    Io,
    /// `ENOSPC`: the device is full.
    NoSpace,
    /// `EACCES`: permission is denied.
    Access,
    /// `EMFILE`: the process has too many descriptors.
    TooManyFiles,
    /// `EROFS`: the file system may only be read.
    ReadOnly,
    /// `EINTR`: a signal came first.
    Interrupted,
}

impl Code {
    /// The error of the operating system.
    pub fn errno(self) -> Errno {
        match self {
            Self::Io => Errno::EIO,
            Self::NoSpace => Errno::ENOSPC,
            Self::Access => Errno::EACCES,
            Self::TooManyFiles => Errno::EMFILE,
            Self::ReadOnly => Errno::EROFS,
            Self::Interrupted => Errno::EINTR,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fails(code) => write!(f, "{:?}", code.errno()),
            Self::Short => f.write_str("short"),
            Self::Kill => f.write_str("kill"),
        }
    }
}
