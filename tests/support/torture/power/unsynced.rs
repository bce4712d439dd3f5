//! Programs that are told that everything is on the disk, whatever is: the control, without which
//! a power cut that loses nothing proves nothing.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// The first argument that makes `torture` a launcher of programs that sync nothing.
pub const WITHOUT_SYNC: &str = "--without-sync";

/// The exit code of a launcher that may not do its work.
pub(crate) const REFUSED: i32 = 119;

/// The calls that wait for a disk.
const SYNCS: [i64; 6] = [
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_msync,
];

/// What the launcher does with what follows [`WITHOUT_SYNC`]: a filter answers 0 to every call that
/// waits for a disk, and it becomes the program. Answers with an exit code if it cannot.
pub fn launch(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(program) = args.next() else {
        return REFUSED;
    };
    let filter = filter();
    let why = match filter
        .as_ref()
        .map(|filter| seccompiler::apply_filter(filter))
    {
        Ok(Ok(())) => Command::new(program).args(args).exec().to_string(),
        Ok(Err(e)) => e.to_string(),
        Err(e) => e.clone(),
    };
    eprintln!("nothing is started without syncing: {why}");
    REFUSED
}

fn filter() -> Result<BpfProgram, String> {
    let arch = std::env::consts::ARCH
        .try_into()
        .map_err(|e: seccompiler::BackendError| e.to_string())?;
    let rules: BTreeMap<i64, Vec<_>> = SYNCS.into_iter().map(|call| (call, Vec::new())).collect();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(0), arch);
    filter
        .and_then(BpfProgram::try_from)
        .map_err(|e| e.to_string())
}
