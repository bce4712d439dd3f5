//! Servers of git repositories, each for one test: on loopback, with a port and files of its own,
//! and gone when it is dropped.
//!
//! The programs are those that people run: lighttpd with `git http-backend` ([`HttpServer`]),
//! OpenSSH ([`SshServer`]) and `git daemon` ([`GitDaemon`]). What no program does on request, such
//! as to cut a line, is done between them and git ([`CutLine`], [`Silence`]).

mod daemon;
mod faulty;
mod http;
mod ssh;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

use crate::call::{Call, Running};
use crate::capability::{Capability, skipped};

pub use daemon::GitDaemon;
pub use faulty::{CutLine, Silence};
pub use http::{HttpOptions, HttpServer};
pub use ssh::{Client, SshServer};

/// Where the programs are.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Whether this machine has the program at `path`; says so where it has not.
fn has(path: &str) -> bool {
    let is_there = Path::new(path).exists();
    if !is_there {
        skipped(Capability::Servers, &format!("there is no {path}"));
    }
    is_there
}

/// Starts what `call` makes of a port, and waits until it listens there.
fn listening(call: impl Fn(u16) -> Call) -> (Running, u16) {
    let mut said = String::new();
    // Somebody else may take the port before the program does.
    for _ in 0..5 {
        let port = free_port();
        let mut running = call(port).start();
        let mut has_ended = false;
        running.until("it listens", |running| {
            has_ended = rustix::process::test_kill_process(running.pid()).is_err();
            has_ended || is_listened_to(port)
        });
        if !has_ended {
            return (running, port);
        }
        said = running.wait().stderr_text();
    }
    panic!("a server does not start: {}: {said}", call(0).what());
}

/// Whether somebody listens there. A connection to a port of nobody's may get that port itself, and
/// is then one with itself.
fn is_listened_to(port: u16) -> bool {
    let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    connection.is_ok_and(|stream| stream.local_addr().ok() != stream.peer_addr().ok())
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has ports");
    let address = listener.local_addr().expect("it is bound");
    address.port()
}

/// Writes a program of `sh`.
fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, format!("#!/bin/sh\n{text}")).expect("the directory is writable");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("it was just written");
}
