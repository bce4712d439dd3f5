//! What git's complaints on standard error mean. Pure.
//!
//! Only whole lines of git's, curl's and ssh's own count, and addresses are compared as they were
//! given: "401" or "rejected" in a path, a branch or the words of a hook decides nothing.

use crate::address::{Address, Protocol};
use crate::failure_kind::FailureKind::{
    self, AuthDenied, LocalGit, NetworkBlip, RemotePolicyRejected, Unknown,
};

/// How many lines of the other side's are shown.
pub(crate) const MAX_REMOTE_LINES: usize = 6;

/// What git complains of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) kind: FailureKind,
    /// The line that says it, or the one that comes nearest; may be empty.
    pub(crate) line: String,
}

impl Complaint {
    /// Reads standard error of a call of `address` that failed. `code`: how git exited.
    pub(crate) fn read(stderr: &[u8], code: Option<i32>, address: &Address) -> Self {
        let text = String::from_utf8_lossy(stderr);
        // Servers and their hooks speak behind this word.
        let is_gits = |line: &&str| !line.starts_with("remote:") && !line.is_empty();
        let lines: Vec<&str> = text.lines().filter(is_gits).collect();
        // What is told first is the cause: a line that was cut also fails whoever waits for it.
        for meaning in [told, disconnected] {
            let mut decisive = lines
                .iter()
                .filter_map(|line| Some((meaning(line, address)?, line)));
            if let Some((kind, line)) = decisive.next() {
                let line = (*line).to_owned();
                return Self { kind, line };
            }
        }
        let is_said = |line: &&&str| line.starts_with("fatal: ") || line.starts_with("error: ");
        let line = lines.iter().find(is_said).or(lines.last());
        Self {
            // Who was killed had no say.
            kind: if code.is_none() { LocalGit } else { Unknown },
            line: line.copied().unwrap_or_default().to_owned(),
        }
    }
}

/// What a line means by itself.
fn told(line: &str, address: &Address) -> Option<FailureKind> {
    match address.protocol() {
        Protocol::Https | Protocol::Http => of_http(line, address),
        Protocol::Ssh => of_ssh(line, address.host()),
        Protocol::Git => of_daemon(line, address.host()),
        Protocol::File => of_directory(line, address),
    }
    .or_else(|| of_this_machine(line))
    .or_else(|| of_unpacking(line))
}

fn of_http(line: &str, address: &Address) -> Option<FailureKind> {
    if let Some(rest) = line.strip_prefix("fatal: unable to access ") {
        let url = address.text().to_str()?.trim_end_matches('/');
        // git asks with a slash at the end.
        let said = rest.strip_prefix('\'')?.strip_prefix(url)?;
        let said = said.trim_start_matches('/').strip_prefix("': ")?;
        let code = said.strip_prefix("The requested URL returned error: ");
        return Some(code.map_or(NetworkBlip, of_status));
    }
    if let Some(rest) = line.strip_prefix("error: RPC failed; ") {
        // With a newer curl, and with an older one.
        let status = rest
            .strip_prefix("HTTP ")
            .or_else(|| rest.strip_prefix("result=22, HTTP code = "));
        return Some(status.map_or(NetworkBlip, of_status));
    }
    let of_credentials = [
        "fatal: Authentication failed for '",
        "fatal: could not read Username for '",
        "fatal: could not read Password for '",
    ];
    of_credentials
        .iter()
        .any(|start| line.starts_with(start))
        .then_some(AuthDenied)
}

/// What a status of HTTP means. Text may follow it.
fn of_status(text: &str) -> FailureKind {
    let digits = text.split(|c: char| !c.is_ascii_digit()).next();
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(401 | 403 | 407) => AuthDenied,
        // It is too large for the server, which will not change its mind.
        Some(413) => RemotePolicyRejected,
        Some(408 | 425 | 429 | 500..=599) => NetworkBlip,
        _ => Unknown,
    }
}

/// Words of OpenSSH.
fn of_ssh(line: &str, host: &str) -> Option<FailureKind> {
    if let Some((who, _)) = line.split_once(": Permission denied (") {
        let at = who.rsplit('@').next()?;
        return (at == host && line.ends_with(").")).then_some(AuthDenied);
    }
    let starts = [
        &*format!("ssh: Could not resolve hostname {host}: "),
        &format!("ssh: connect to host {host} port "),
        "kex_exchange_identification: ",
        "banner exchange: ",
        "Connection timed out during banner exchange",
        "client_loop: send disconnect: ",
        "ssh_dispatch_run_fatal: ",
        "Connection closed by ",
        "Connection reset by ",
        &format!("Timeout, server {host} not responding."),
        &format!("Connection to {host} closed by remote host."),
    ];
    let is_of_network = starts.iter().any(|start| line.starts_with(start));
    is_of_network.then_some(NetworkBlip)
}

fn of_daemon(line: &str, host: &str) -> Option<FailureKind> {
    if line.starts_with("fatal: remote error: access denied or repository not exported: ") {
        return Some(AuthDenied);
    }
    let starts = [
        &*format!("fatal: unable to look up {host} (port "),
        &format!("fatal: unable to connect to {host}:"),
        &format!("fatal: unable to connect to {host}\n"),
        "fatal: unable to connect a socket (",
    ];
    let is_of_network = starts.iter().any(|start| line.starts_with(start));
    is_of_network.then_some(NetworkBlip)
}

/// A remote that is a directory, and the git that looks for a repository there: what lacks, lacks
/// on this machine. Over the network the same words are those of a server.
fn of_directory(line: &str, address: &Address) -> Option<FailureKind> {
    let path = address.directory()?.to_string_lossy();
    let said = [
        format!("fatal: '{path}' does not appear to be a git repository"),
        format!("fatal: detected dubious ownership in repository at '{path}'"),
        format!("fatal: invalid gitfile format: {path}"),
    ];
    said.iter().any(|said| said == line).then_some(LocalGit)
}

/// The store, the disk, and git itself.
fn of_this_machine(line: &str) -> Option<FailureKind> {
    let starts = [
        "fatal: not a git repository: ",
        "fatal: bad object ",
        "fatal: unable to read ",
        "fatal: unable to create temporary file",
        "error: unable to create temporary file",
        "fatal: unable to write ",
        "error: src refspec ",
        "git: 'remote-",
    ];
    let is_local = starts.iter().any(|start| line.starts_with(start))
        // Nobody reads any more what a program writes that SIGPIPE ends.
        || line.starts_with("error: pack-objects died") && !line.ends_with(" of signal 13")
        || line == "fatal: write error: No space left on device";
    is_local.then_some(LocalGit)
}

/// What the other side has said, hooks and git alike, in at most [`MAX_REMOTE_LINES`] lines: the
/// first of many, and the last. It is for people, and means nothing here.
pub(crate) fn words_of_remote(stderr: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(stderr);
    let said = text.lines().filter_map(|line| {
        // What was overwritten on a terminal is progress.
        let line = line.strip_prefix("remote:")?.trim();
        let line = line.rsplit('\r').next()?.trim();
        line.chars()
            .any(char::is_alphanumeric)
            .then(|| line.to_owned())
    });
    let mut said: Vec<String> = said.collect();
    if said.len() > MAX_REMOTE_LINES {
        let last = said.split_off(said.len() - MAX_REMOTE_LINES / 2);
        said.truncate(MAX_REMOTE_LINES - last.len());
        said.push("…".to_owned());
        said.extend(last);
    }
    said
}

/// A server took the pack, and its checks or limits have ended the program that reads it.
fn of_unpacking(line: &str) -> Option<FailureKind> {
    let reason = line.strip_prefix("error: remote unpack failed: ")?;
    let ended = ["index-pack abnormal exit", "unpack-objects abnormal exit"];
    ended.contains(&reason).then_some(RemotePolicyRejected)
}

/// The other side has gone in the middle of a sentence.
fn disconnected(line: &str, address: &Address) -> Option<FailureKind> {
    // A repository on this machine that goes away has a reason of its own, and no network.
    if address.protocol() == Protocol::File {
        return None;
    }
    let is_cut = [
        "fatal: the remote end hung up unexpectedly",
        "fatal: early EOF",
        "fatal: protocol error: unexpected EOF",
    ]
    .contains(&line)
        || line.ends_with("unexpected disconnect while reading sideband packet")
        || line.starts_with("fatal: read error: ")
        || line.starts_with("fatal: write error: ");
    is_cut.then_some(NetworkBlip)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text.as_ref(), Path::new("/"))
            .unwrap()
            .address
    }

    #[test]
    fn each_complaint_means_what_it_says() {
        let http = "https://example.org/a.git";
        let ssh = "git@example.org:a.git";
        let daemon = "git://example.org/a.git";
        let access = format!("fatal: unable to access '{http}/': ");
        for (address_text, lines, kind) in [
            (
                http,
                format!("{access}Could not resolve host: example.org"),
                NetworkBlip,
            ),
            (
                http,
                format!("{access}SSL certificate problem: self-signed certificate"),
                NetworkBlip,
            ),
            (
                http,
                format!("{access}The requested URL returned error: 503"),
                NetworkBlip,
            ),
            (
                http,
                format!("{access}The requested URL returned error: 403"),
                AuthDenied,
            ),
            (
                http,
                format!("{access}The requested URL returned error: 404"),
                Unknown,
            ),
            (
                http,
                "fatal: Authentication failed for 'https://example.org/a.git/'".into(),
                AuthDenied,
            ),
            (
                http,
                "error: RPC failed; HTTP 413 curl 22 The requested URL returned error: 413\n\
                 send-pack: unexpected disconnect while reading sideband packet\n\
                 fatal: the remote end hung up unexpectedly"
                    .into(),
                RemotePolicyRejected,
            ),
            (
                http,
                "error: RPC failed; curl 56 Recv failure: Connection reset by peer".into(),
                NetworkBlip,
            ),
            (
                http,
                "fatal: the remote end hung up unexpectedly".into(),
                NetworkBlip,
            ),
            (http, "fatal: unable to read 0123456789".into(), LocalGit),
            (
                ssh,
                "git@example.org: Permission denied (publickey).\n\
                 fatal: Could not read from remote repository."
                    .into(),
                AuthDenied,
            ),
            (
                ssh,
                "ssh: connect to host example.org port 22: Connection refused\n\
                 fatal: Could not read from remote repository."
                    .into(),
                NetworkBlip,
            ),
            (ssh, "Host key verification failed.".into(), Unknown),
            (
                daemon,
                "fatal: remote error: access denied or repository not exported: /a.git".into(),
                AuthDenied,
            ),
            (
                daemon,
                "fatal: unable to connect to example.org:".into(),
                NetworkBlip,
            ),
            (
                "/a.git",
                "fatal: the remote end hung up unexpectedly".into(),
                Unknown,
            ),
            (
                "file:///a/401.git",
                "fatal: '/a/401.git' does not appear to be a git repository\n\
                 fatal: Could not read from remote repository."
                    .into(),
                LocalGit,
            ),
            (
                "/a.git",
                "fatal: '/b.git' does not appear to be a git repository".into(),
                Unknown,
            ),
            (
                ssh,
                "fatal: 'a.git' does not appear to be a git repository".into(),
                Unknown,
            ),
        ] {
            let complaint = Complaint::read(lines.as_bytes(), Some(128), &address(address_text));
            assert_eq!(complaint.kind, kind, "{address_text}: {lines}");
            assert!(lines.contains(&complaint.line), "{complaint:?}");
        }
    }

    #[test]
    fn a_few_lines_of_the_other_side_are_kept_for_people() {
        let said = b"remote: \nremote: ======        \nremote: no issue        \n\
            error: ours\nremote: 10%\rremote: 20%\rremote: done\nfatal: remote: x\n";
        assert_eq!(words_of_remote(said), ["no issue", "remote: done"]);
        let many: String = (0..9).map(|n| format!("remote: {n}\n")).collect();
        let kept = ["0", "1", "2", "…", "6", "7", "8"];
        assert_eq!(words_of_remote(many.as_bytes()), kept);
        assert_eq!(words_of_remote(b""), [] as [&str; 0]);
    }

    #[test]
    fn what_others_say_decides_nothing() {
        let http = address("https://example.org/401/403");
        for line in [
            "remote: fatal: Authentication failed for 'https://example.org/401/403/'",
            "remote: error: RPC failed; HTTP 403",
            "fatal: repository 'https://example.org/401/403/' not found",
            "fatal: unable to access 'https://other.example.org/': The requested URL returned error: 403",
            "error: failed to push some refs to 'https://example.org/401/403'",
            "warning: 401 rejected",
        ] {
            let complaint = Complaint::read(line.as_bytes(), Some(128), &http);
            assert_eq!(complaint.kind, Unknown, "{line}");
        }
        let killed = Complaint::read(b"", None, &http);
        assert_eq!(killed.kind, LocalGit);
    }
}
