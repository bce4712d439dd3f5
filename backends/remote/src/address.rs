//! The address of a remote.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use stillframe_model::error::ErrorKind;
use stillframe_model::path::printable_name;

use crate::secret::Secret;

/// Where a remote is: an `https`, `ssh`, `git` or `file` URL, `[user@]host:path` for ssh, or a
/// path. No other transport is possible, and no helper such as `ext::` is.
///
/// Plain `http` is taken for this machine alone (`localhost` or a loopback address): elsewhere it
/// would send a token for everybody to read. `git` has neither encryption nor credentials.
///
/// The hooks of a repository that is given by its path run on this machine, with the rights of
/// this process, when somebody pushes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    protocol: Protocol,
    /// What git is told. It has no password, and for `https` no user.
    text: OsString,
    /// The host, without its brackets; empty for a path.
    host: String,
}

/// An address with what stood in it for who asks.
#[derive(Clone, Debug)]
pub struct ParsedAddress {
    /// The address, without what follows.
    pub address: Address,
    /// Who asks, if the address said so and is one that asks for credentials.
    pub login: Option<Login>,
}

/// The part before the `@` of an `https` address. Some forges take a token for the user, so both
/// are secret.
#[derive(Clone, Debug)]
pub struct Login {
    /// The user.
    pub user: Secret,
    /// The password; `None`: the address has none.
    pub password: Option<Secret>,
}

/// How git speaks with a remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Https,
    Http,
    Ssh,
    Git,
    File,
}

/// Why something is no address. The text of the address is not in the message beyond its host,
/// since it may have a password in it. Nobody was asked anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It names a transport that is not used.
    #[error("a remote has an address of https, ssh, git or file, or a path, and not {scheme}")]
    Scheme {
        /// The transport.
        scheme: String,
    },
    /// Plain http to another machine.
    #[error("http is for this machine alone, and {host} may be another; use https")]
    PlainHttp {
        /// The host.
        host: String,
    },
    /// A password where none is used.
    #[error("the address of {host} has a password, which {scheme} does not use; take it out")]
    Password {
        /// The host.
        host: String,
        /// The transport.
        scheme: &'static str,
    },
    /// A part of it cannot be right.
    #[error("the address of the remote cannot be right: {reason}")]
    Malformed {
        /// What is wrong.
        reason: &'static str,
    },
}

impl AddressError {
    /// The kind at the API.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::InvalidOptions
    }
}

impl Protocol {
    fn of(scheme: &str) -> Option<Self> {
        let all = [Self::Https, Self::Http, Self::Ssh, Self::Git, Self::File];
        let is_it = |known: &Self| scheme.eq_ignore_ascii_case(known.scheme());
        all.into_iter().find(is_it)
    }

    /// As git spells it in URLs, and in the list of transports that are allowed.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Ssh => "ssh",
            Self::Git => "git",
            Self::File => "file",
        }
    }
}

/// A path from `base`. Steps up at its beginning are taken there, so that one place has one name.
fn from(base: &Path, path: &Path) -> PathBuf {
    let mut at = base.to_owned();
    let mut rest = path.components();
    loop {
        let before = rest.clone();
        match rest.next() {
            Some(Component::CurDir) => {}
            Some(Component::ParentDir) => drop(at.pop()),
            _ => return at.join(before.as_path()),
        }
    }
}

impl Address {
    /// Reads an address. A relative path is taken from `base`, which is absolute and has no links:
    /// the directory of the repository that has it in its configuration, or the one that a user is
    /// in.
    pub fn parse(text: &OsStr, base: &Path) -> Result<ParsedAddress, AddressError> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(malformed("it is empty"));
        }
        // A line end in a URL gets into what helpers for credentials read line by line.
        if bytes.iter().any(u8::is_ascii_control) {
            return Err(malformed("it has control characters"));
        }
        match split(bytes) {
            Split::Helper(name) => Err(AddressError::Scheme {
                scheme: printable_name(&[name, b"::"].concat()),
            }),
            Split::Url(scheme, rest) => {
                let scheme = str::from_utf8(scheme).expect("it is ASCII");
                let protocol = Protocol::of(scheme).ok_or_else(|| AddressError::Scheme {
                    scheme: scheme.to_owned(),
                })?;
                match protocol {
                    Protocol::File => file_url(rest).map(Self::path),
                    _ => url(protocol, rest),
                }
            }
            Split::Scp(host, path) => scp(host, path),
            Split::Path => Ok(Self::path(from(base, text.as_ref()))),
        }
    }

    /// The directory, if it is one of this machine that was given by its path.
    pub fn directory(&self) -> Option<&Path> {
        let path = Path::new(&self.text);
        (self.protocol == Protocol::File && path.is_absolute()).then_some(path)
    }

    fn path(path: PathBuf) -> ParsedAddress {
        ParsedAddress {
            address: Self {
                protocol: Protocol::File,
                text: path.into(),
                host: String::new(),
            },
            login: None,
        }
    }

    /// What git is told, which has nothing secret in it.
    pub fn text(&self) -> &OsStr {
        &self.text
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The host, without brackets; empty for a path.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Whether the remote may ask for a token: over `https`, and by no other protocol.
    pub fn takes_token(&self) -> bool {
        self.credential_scope().is_some()
    }

    /// `scheme://host:port`, if the remote may ask for credentials: where they may be sent.
    pub(crate) fn credential_scope(&self) -> Option<&str> {
        if !matches!(self.protocol, Protocol::Https | Protocol::Http) {
            return None;
        }
        let text = self.text.to_str()?;
        let authority = text.find("://")? + 3;
        let end = text[authority..].find('/').map(|at| authority + at);
        Some(&text[..end.unwrap_or(text.len())])
    }
}

/// Without anything secret, and as it can be read again.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable_name(self.text.as_bytes()))
    }
}

/// A text for a remote, without what stands in it for who asks: the name of a remote, and a path,
/// as they are. What is no address has neither, as far as that can be told.
pub fn without_login(text: &str) -> String {
    if !text.contains("://") {
        return text.to_owned();
    }
    match Address::parse(text.as_ref(), Path::new("/")) {
        Ok(parsed) => parsed.address.to_string(),
        Err(_) => match (text.find("://"), text.rfind('@')) {
            (Some(scheme), Some(at)) if scheme < at => {
                format!("{}{}", &text[..scheme + 3], &text[at + 1..])
            }
            _ => text.to_owned(),
        },
    }
}

/// What git takes a text for (`transport_get` and `parse_connect_url`).
enum Split<'a> {
    /// `name::…`, which starts the program `git-remote-name`.
    Helper(&'a [u8]),
    Url(&'a [u8], &'a [u8]),
    /// `host:path`.
    Scp(&'a [u8], &'a [u8]),
    Path,
}

fn split(text: &[u8]) -> Split<'_> {
    let is_of_scheme = |b: &u8| b.is_ascii_alphanumeric() || b"+-.".contains(b);
    let name = text.iter().take_while(|b| is_of_scheme(b)).count();
    let (scheme, rest) = text.split_at(name);
    if rest.starts_with(b"::") {
        return Split::Helper(scheme);
    }
    if let Some(rest) = rest.strip_prefix(b"://").filter(|_| name > 0) {
        return Split::Url(scheme, rest);
    }
    // The colons of an IPv6 address are inside of brackets.
    let after = match text.first() {
        Some(b'[') => text.iter().position(|b| *b == b']').unwrap_or(0),
        _ => match text.windows(2).position(|two| two == b"@[") {
            Some(at) => text[at..]
                .iter()
                .position(|b| *b == b']')
                .map_or(at, |n| at + n),
            None => 0,
        },
    };
    match text[after..].iter().position(|b| *b == b':' || *b == b'/') {
        Some(at) if text[after + at] == b':' => {
            Split::Scp(&text[..after + at], &text[after + at + 1..])
        }
        _ => Split::Path,
    }
}

/// The parts of `[user[:password]@]host[:port]`.
struct Authority<'a> {
    user: Option<&'a [u8]>,
    password: Option<&'a [u8]>,
    /// With its brackets.
    host: &'a str,
    port: Option<u16>,
}

impl<'a> Authority<'a> {
    fn parse(text: &'a [u8]) -> Result<Self, AddressError> {
        let (info, host) = match text.iter().rposition(|b| *b == b'@') {
            Some(at) => (Some(&text[..at]), &text[at + 1..]),
            None => (None, text),
        };
        let (user, password) = match info.map(|info| (info, info.iter().position(|b| *b == b':'))) {
            Some((info, Some(at))) => (Some(&info[..at]), Some(&info[at + 1..])),
            Some((info, None)) => (Some(info), None),
            None => (None, None),
        };
        let host = str::from_utf8(host).map_err(|_| malformed("its host is not UTF-8"))?;
        let port_at = match host.rfind(']') {
            Some(end) => host[end..].find(':').map(|at| end + at),
            None => host.find(':'),
        };
        let (host, port) = match port_at {
            Some(at) => (&host[..at], Some(&host[at + 1..])),
            None => (host, None),
        };
        let port = port.map(|digits| match digits.parse() {
            Ok(port @ 1..) if digits.bytes().all(|b| b.is_ascii_digit()) => Ok(port),
            _ => Err(malformed("its port is no number of a port")),
        });
        check_host(host)?;
        Ok(Self {
            user,
            password,
            host,
            port: port.transpose()?,
        })
    }

    fn bare_host(&self) -> &'a str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// The user of ssh, which is not secret.
    fn ssh_user(&self) -> Result<Option<&'a str>, AddressError> {
        if self.password.is_some() {
            return Err(self.password_error("ssh"));
        }
        let is_sound = |user: &str| {
            let is_odd = |b: u8| !b.is_ascii_alphanumeric() && !b"._-+\\$".contains(&b);
            !user.is_empty() && !user.starts_with('-') && !user.bytes().any(is_odd)
        };
        let Some(user) = self.user else {
            return Ok(None);
        };
        let user = str::from_utf8(user).ok().filter(|user| is_sound(user));
        user.map(Some).ok_or(malformed("its user is no name"))
    }

    fn password_error(&self, scheme: &'static str) -> AddressError {
        AddressError::Password {
            host: self.bare_host().to_owned(),
            scheme,
        }
    }
}

fn check_host(host: &str) -> Result<(), AddressError> {
    let inside = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    if let Some(inside) = inside {
        let address = inside.parse::<Ipv6Addr>();
        return address
            .map(|_| ())
            .map_err(|_| malformed("its host is no IPv6 address"));
    }
    // A program would take one that begins with a dash for an option. No percent signs: ssh gets
    // the host decoded.
    let is_odd = |c: char| !c.is_alphanumeric() && !".-_".contains(c);
    match host.is_empty() || host.starts_with('-') || host.contains(is_odd) {
        true => Err(malformed("its host is no name of a host")),
        false => Ok(()),
    }
}

fn is_this_machine(host: &str) -> bool {
    let is_loopback = |host: &str| {
        let v4 = host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback());
        v4 || host.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback())
    };
    host.eq_ignore_ascii_case("localhost") || is_loopback(host)
}

fn url(protocol: Protocol, rest: &[u8]) -> Result<ParsedAddress, AddressError> {
    let end = rest.iter().position(|b| *b == b'/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = Authority::parse(authority)?;
    if path.len() < 2 {
        return Err(malformed("it names no repository of its host"));
    }
    let scheme = protocol.scheme();
    let (user, login) = match protocol {
        Protocol::Ssh => (authority.ssh_user()?, None),
        Protocol::Git if authority.password.is_some() => {
            return Err(authority.password_error(scheme));
        }
        Protocol::Git if authority.user.is_some() => {
            return Err(malformed(
                "git has no users; take out what stands before the @",
            ));
        }
        Protocol::Git | Protocol::File => (None, None),
        Protocol::Https | Protocol::Http => {
            // It may be a token as well.
            if path.contains(&b'?') || path.contains(&b'#') {
                return Err(malformed("it has a query or a fragment"));
            }
            (None, login(&authority)?)
        }
    };
    let host = authority.bare_host().to_owned();
    if protocol == Protocol::Http && !is_this_machine(&host) {
        return Err(AddressError::PlainHttp { host });
    }
    let user = user.map_or(String::new(), |user| format!("{user}@"));
    let port = authority
        .port
        .map_or(String::new(), |port| format!(":{port}"));
    let mut text = format!("{scheme}://{user}{}{port}", authority.host).into_bytes();
    text.extend_from_slice(path);
    let address = Address {
        protocol,
        text: OsString::from_vec(text),
        host,
    };
    Ok(ParsedAddress { address, login })
}

fn login(authority: &Authority<'_>) -> Result<Option<Login>, AddressError> {
    let secret = |encoded: &[u8]| {
        let value = percent_decoded(encoded).ok_or(malformed("its user has a wrong % escape"))?;
        Secret::new(value).map_err(|_| malformed("its user or password is empty, or no text"))
    };
    let Some(user) = authority.user else {
        return Ok(None);
    };
    // `TOKEN:@host`, or `:TOKEN@host`: one of the two says it all, and the other is any text.
    let any = |text: &[u8]| match text.is_empty() {
        true => b"x".to_vec(),
        false => text.to_vec(),
    };
    let password = authority.password.map(|password| secret(&any(password)));
    Ok(Some(Login {
        user: secret(&any(user))?,
        password: password.transpose()?,
    }))
}

fn scp(host: &[u8], path: &[u8]) -> Result<ParsedAddress, AddressError> {
    // git reads `user:password@host:path` as a host named by the user, and would print the rest.
    let first = path.split(|b| *b == b'/').next().unwrap_or_default();
    if first.contains(&b'@') {
        return Err(malformed(
            "an @ stands behind its first colon; ssh uses no password",
        ));
    }
    // With git's `[host:port]:path` in the place of the host, this is no IPv6 address.
    let authority = Authority::parse(host)?;
    let user = authority.ssh_user()?;
    if path.is_empty() || path.starts_with(b"-") {
        return Err(malformed("it names no repository of its host"));
    }
    let user = user.map_or(String::new(), |user| format!("{user}@"));
    let mut text = format!("{user}{}:", authority.host).into_bytes();
    text.extend_from_slice(path);
    let address = Address {
        protocol: Protocol::Ssh,
        text: OsString::from_vec(text),
        host: authority.bare_host().to_owned(),
    };
    Ok(ParsedAddress {
        address,
        login: None,
    })
}

/// The path of `file:///path`.
fn file_url(rest: &[u8]) -> Result<PathBuf, AddressError> {
    if !rest.starts_with(b"/") {
        return Err(malformed("file:// needs an absolute path, and no host"));
    }
    let path = percent_decoded(rest).ok_or(malformed("it has a wrong % escape"))?;
    match path.iter().any(u8::is_ascii_control) {
        true => Err(malformed("it has control characters")),
        false => Ok(OsString::from_vec(path).into()),
    }
}

fn percent_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let digits = str::from_utf8(rest.get(..2)?).ok()?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        out.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    Some(out)
}

fn malformed(reason: &'static str) -> AddressError {
    AddressError::Malformed { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ParsedAddress, AddressError> {
        Address::parse(text.as_ref(), Path::new("/base"))
    }

    #[track_caller]
    fn shown(text: &str) -> String {
        let parsed = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        parsed.address.to_string()
    }

    #[test]
    fn what_git_takes_for_an_address_is_one() {
        for (text, protocol, host) in [
            (
                "https://example.org/a/b.git",
                Protocol::Https,
                "example.org",
            ),
            (
                "https://example.org:8443/~me/b",
                Protocol::Https,
                "example.org",
            ),
            ("http://localhost:8080/a", Protocol::Http, "localhost"),
            ("http://127.0.0.2/a", Protocol::Http, "127.0.0.2"),
            ("http://[::1]:80/a", Protocol::Http, "::1"),
            ("ssh://git@example.org:2222/a", Protocol::Ssh, "example.org"),
            ("ssh://[::1]:22/a", Protocol::Ssh, "::1"),
            ("git@example.org:a/b.git", Protocol::Ssh, "example.org"),
            ("me@[::1]:a", Protocol::Ssh, "::1"),
            ("host:/absolute", Protocol::Ssh, "host"),
            ("git://example.org/a", Protocol::Git, "example.org"),
            ("/srv/a:b.git", Protocol::File, ""),
        ] {
            let address = parse(text).unwrap().address;
            assert_eq!(
                (address.protocol, &*address.host),
                (protocol, host),
                "{text}"
            );
            assert_eq!(address.to_string(), text);
        }
        assert_eq!(shown("HTTPS://Example.org/A"), "https://Example.org/A");
        assert_eq!(shown("../remote.git"), "/remote.git");
        assert_eq!(shown("./../.././a/../b.git"), "/a/../b.git");
        assert_eq!(shown("./a:b"), "/base/a:b");
        assert_eq!(shown("file:///srv/a%20b"), "/srv/a b");
    }

    #[test]
    fn whatever_else_there_is_is_no_address() {
        for text in [
            "",
            "ext::sh -c touch% /tmp/x",
            "fd::17",
            "http::https://example.org/a",
            "ftp://example.org/a",
            "git+ssh://example.org/a",
            "http://example.org/a",
            "http://127.0.0.1.example.org/a",
            "https:///a",
            "https://example.org",
            "https://example.org/",
            "https://example.org:0/a",
            "https://example.org:http/a",
            "https://example.org/a?private_token=secret",
            "https://exa\nmple.org/a",
            "https://%2d/a",
            "ssh://-oProxyCommand=touch/a",
            "ssh://-o@example.org/a",
            "ssh://me:secret@example.org/a",
            "me:secret@example.org:a",
            "-host:a",
            "-oProxyCommand=touch@example.org:a",
            "host:-path",
            "host:",
            "git://me@example.org/a",
            "git://me:secret@example.org/a",
            "file://host/a",
            "file:///a%0ab",
            "file:///a%+1",
            "https://[::1/a",
        ] {
            let error = parse(text).map(|parsed| parsed.address);
            let error = error.expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidOptions);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn what_stands_before_the_host_of_https_is_taken_out_and_printed_nowhere() {
        for (text, user, password) in [
            ("https://me@example.org/a", "me", None),
            ("https://me:pw%3apw@example.org/a", "me", Some("pw:pw")),
            ("https://me:a@b@example.org/a", "me", Some("a@b")),
            ("https://t0ken:@example.org/a", "t0ken", Some("x")),
            ("https://:t0ken@example.org/a", "x", Some("t0ken")),
        ] {
            let parsed = parse(text).unwrap();
            let login = parsed.login.as_ref().unwrap();
            assert_eq!(login.user.as_os_str(), user, "{text}");
            let found = login.password.as_ref().map(Secret::as_os_str);
            assert_eq!(found, password.map(OsStr::new), "{text}");
            assert_eq!(parsed.address.to_string(), "https://example.org/a");
            let debug = format!("{parsed:?}");
            assert!(!debug.contains("pw") && !debug.contains("t0ken"), "{debug}");
        }
    }

    #[test]
    fn credentials_are_for_one_host_and_port() {
        let scope = |text| {
            let address = parse(text).unwrap().address;
            address.credential_scope().map(str::to_owned)
        };
        let https = scope("https://me@example.org:8443/a/b");
        assert_eq!(https.as_deref(), Some("https://example.org:8443"));
        for other in ["ssh://example.org/a", "/a", "git://example.org/a"] {
            assert_eq!(scope(other), None, "{other}");
        }
    }
}
