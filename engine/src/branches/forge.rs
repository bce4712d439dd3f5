//! Where a forge shows a commit. Pure.

/// A repository at a forge that shows commits at known addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forge {
    kind: ForgeKind,
    /// Owner and name, or a longer path.
    repository: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForgeKind {
    Github,
    Gitlab,
}

impl Forge {
    /// The forge that a remote's address leads to; `None`: it is not known how it shows commits.
    ///
    /// Nothing of the address but the path is kept: it may have credentials.
    pub(crate) fn of(address: &str) -> Option<Self> {
        let (host, path) = host_and_path(address)?;
        let kind = match host.to_ascii_lowercase().as_str() {
            "github.com" => ForgeKind::Github,
            "gitlab.com" => ForgeKind::Gitlab,
            _ => return None,
        };
        let path = path.trim_matches('/');
        let repository = path.strip_suffix(".git").unwrap_or(path);
        let components: Vec<&str> = repository.split('/').collect();
        let is_long_enough = match kind {
            ForgeKind::Github => components.len() == 2,
            ForgeKind::Gitlab => components.len() >= 2,
        };
        let is_plain = |component: &&str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
            !matches!(*component, "" | "." | "..") && component.bytes().all(plain)
        };
        (is_long_enough && components.iter().all(is_plain)).then(|| Self {
            kind,
            repository: repository.to_owned(),
        })
    }

    /// Where the files of a commit are shown.
    pub(crate) fn tree(&self, commit: &str) -> String {
        let repository = &self.repository;
        match self.kind {
            ForgeKind::Github => format!("https://github.com/{repository}/tree/{commit}"),
            ForgeKind::Gitlab => format!("https://gitlab.com/{repository}/-/tree/{commit}"),
        }
    }

    /// Where is shown what a commit changes since it left the default branch.
    pub(crate) fn compare(&self, default_branch: &str, commit: &str) -> String {
        let (repository, from) = (&self.repository, escaped(default_branch));
        match self.kind {
            ForgeKind::Github => {
                format!("https://github.com/{repository}/compare/{from}...{commit}")
            }
            ForgeKind::Gitlab => {
                format!("https://gitlab.com/{repository}/-/compare/{from}...{commit}")
            }
        }
    }
}

/// Host and path of `https://[user[:password]@]host[:port]/path`, of `ssh://` and `git://` alike,
/// and of `[user@]host:path`.
fn host_and_path(address: &str) -> Option<(&str, &str)> {
    let (authority, path) = match address.split_once("://") {
        Some((scheme, rest)) => {
            let is_known = ["https", "ssh", "git"].contains(&scheme.to_ascii_lowercase().as_str());
            if !is_known {
                return None;
            }
            rest.split_once('/')?
        }
        // A slash before the colon makes it a path of this machine.
        None => {
            let (authority, path) = address.split_once(':')?;
            if authority.contains('/') {
                return None;
            }
            return Some((without_user(authority), path));
        }
    };
    let host = without_user(authority);
    Some((host.split_once(':').map_or(host, |(host, _)| host), path))
}

fn without_user(authority: &str) -> &str {
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
}

/// A branch as part of an address (RFC 3986): bytes that mean something there are escaped.
fn escaped(branch: &str) -> String {
    let mut escaped = String::with_capacity(branch.len());
    for byte in branch.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'~' | b'/' => {
                escaped.push(char::from(byte));
            }
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_any_form_leads_to_its_forge() {
        for address in [
            "https://github.com/acme/web",
            "https://github.com/acme/web.git",
            "https://GitHub.com/acme/web.git/",
            "https://github.com:443/acme/web.git",
            "https://x-access-token:ghs_0000@github.com/acme/web.git",
            "ssh://git@github.com/acme/web.git",
            "ssh://git@github.com:22/acme/web.git",
            "git://github.com/acme/web.git",
            "git@github.com:acme/web.git",
            "github.com:acme/web",
        ] {
            let forge = Forge::of(address).unwrap_or_else(|| panic!("{address}"));
            assert_eq!(
                forge.tree("c0ffee"),
                "https://github.com/acme/web/tree/c0ffee"
            );
            assert_eq!(
                forge.compare("main", "c0ffee"),
                "https://github.com/acme/web/compare/main...c0ffee"
            );
        }
        let forge = Forge::of("git@gitlab.com:group/sub/web.git").unwrap();
        assert_eq!(
            forge.tree("c0ffee"),
            "https://gitlab.com/group/sub/web/-/tree/c0ffee"
        );
        assert_eq!(
            forge.compare("rel/1#2 é", "c0ffee"),
            "https://gitlab.com/group/sub/web/-/compare/rel/1%232%20%C3%A9...c0ffee"
        );
    }

    #[test]
    fn other_addresses_have_none() {
        for address in [
            "",
            "/srv/git/web.git",
            "./github.com:acme/web",
            "file:///github.com/acme/web",
            "https://example.com/acme/web.git",
            "https://github.com.example.com/acme/web",
            "https://github.com@example.com/acme/web",
            "https://notgithub.com/acme/web",
            "https://github.com",
            "https://github.com/",
            "https://github.com/acme",
            "https://github.com/acme/web/tree",
            "https://github.com/acme/../web",
            "https://github.com/../web",
            "https://github.com/acme/we b",
            "https://github.com/acme/web?token=1",
            "https://gitlab.com/acme//web",
            "ext::sh -c github.com:acme/web",
        ] {
            assert_eq!(Forge::of(address), None, "{address}");
        }
    }
}
