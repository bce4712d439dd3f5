//! lighttpd with `git http-backend`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::call::{Call, Running};

const LIGHTTPD: &str = "/usr/sbin/lighttpd";

/// A server of the bare repositories in a directory, below `/git/`.
///
/// Everything below `/git/forbidden/` is 403, and everything below `/git/broken/` 500.
pub struct HttpServer {
    port: u16,
    running: Running,
}

/// What a server does beside serving.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpOptions<'a> {
    /// Who may do anything at all, with a password; `None`: everybody.
    pub user: Option<(&'a str, &'a str)>,
    /// The longest body of a request, in KiB.
    pub max_body_kib: Option<u32>,
    /// The port of another server, which everything below `/git/moved/` is said to have moved to.
    pub moved_to: Option<u16>,
}

impl HttpServer {
    /// Serves `repositories`, with files of its own in the new directory `own`; `None`: there is
    /// no lighttpd.
    ///
    /// While the file `own/lag` has a letter, what is read comes from `own/replicas` in the place
    /// of `repositories`, and each answer takes a letter away. `own/requests` has a line for each
    /// request, with what was asked and how many bytes came, once the server has ended.
    pub fn start(own: &Path, repositories: &Path, options: HttpOptions<'_>) -> Option<Self> {
        if !super::has(LIGHTTPD) {
            return None;
        }
        fs::create_dir(own).expect("the directory is new");
        let (running, port) = super::listening(|port| {
            write_files(own, repositories, options, port);
            let config = own.join("lighttpd.conf");
            Call::new(LIGHTTPD, own).args(["-D".as_ref(), "-f".as_ref(), config.as_os_str()])
        });
        Some(Self { port, running })
    }

    /// Ends it, so that its log is whole.
    pub fn end(self) {
        self.running.signal(Signal::TERM);
        self.running.wait();
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn write_files(own: &Path, repositories: &Path, options: HttpOptions<'_>, port: u16) {
    let (path, own_text, all) = (super::PATH, own.display(), repositories.display());
    let backend = own.join("backend");
    super::script(
        &backend,
        &format!(
            "export PATH={path} HOME='{own_text}' GIT_CONFIG_NOSYSTEM=1 GIT_HTTP_EXPORT_ALL=1\n\
             export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=http.receivepack GIT_CONFIG_VALUE_0=true\n\
             export GIT_PROJECT_ROOT='{all}'\n\
             case \"$PATH_INFO\" in /broken/*) printf 'Status: 500 Broken\\r\\n\\r\\n'; exit;; esac\n\
             case \"$PATH_INFO?$QUERY_STRING\" in *git-upload-pack*)\n\
             lag=$(cat '{own_text}/lag' 2>/dev/null)\n\
             if [ -n \"$lag\" ]; then\n\
             export GIT_PROJECT_ROOT='{own_text}/replicas'\n\
             [ \"$REQUEST_METHOD\" != POST ] || printf %s \"${{lag#?}}\" >'{own_text}/lag'\n\
             fi;; esac\n\
             exec git http-backend\n"
        ),
    );
    let mut config = format!(
        "server.document-root = \"{own_text}\"\n\
         server.bind = \"127.0.0.1\"\n\
         server.port = {port}\n\
         server.modules = (\"mod_access\", \"mod_alias\", \"mod_redirect\", \"mod_auth\", \
         \"mod_authn_file\", \"mod_accesslog\", \"mod_cgi\")\n\
         server.errorlog = \"{own_text}/errors\"\n\
         accesslog.format = \"%r %s %I\"\n\
         accesslog.filename = \"{own_text}/requests\"\n\
         server.upload-dirs = (\"{own_text}\")\n\
         alias.url = (\"/git/\" => \"{own_text}/backend/\")\n\
         cgi.assign = (\"backend\" => \"\")\n\
         $HTTP[\"url\"] =~ \"^/git/forbidden/\" {{ url.access-deny = (\"\") }}\n"
    );
    if let Some(limit) = options.max_body_kib {
        let _ = writeln!(config, "server.max-request-size = {limit}");
    }
    if let Some(other) = options.moved_to {
        let _ = writeln!(
            config,
            "url.redirect = (\"^/git/moved/(.*)$\" => \"http://127.0.0.1:{other}/git/$1\")"
        );
    }
    if let Some((user, password)) = options.user {
        let users = own.join("users");
        fs::write(&users, format!("{user}:{password}\n")).expect("the directory is writable");
        let _ = writeln!(
            config,
            "auth.backend = \"plain\"\n\
             auth.backend.plain.userfile = \"{}\"\n\
             auth.require = (\"/git/\" => (\"method\" => \"basic\", \"realm\" => \"git\", \
             \"require\" => \"valid-user\"))",
            users.display()
        );
    }
    fs::write(own.join("lighttpd.conf"), config).expect("the directory is writable");
}
