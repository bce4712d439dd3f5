//! OpenSSH.

use std::fs;
use std::path::{Path, PathBuf};

use crate::call::{Call, Running};

const SSHD: &str = "/usr/sbin/sshd";

/// A server with keys of its own, for the user that the test runs as.
pub struct SshServer {
    own: PathBuf,
    user: String,
    port: u16,
    _running: Running,
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// One with the key that the server knows.
    Known,
    /// One with another key.
    Unknown,
    /// One that knows another key of the server.
    Warned,
}

impl SshServer {
    /// Starts one, with its files in the new directory `own`; `None`: there is none here.
    pub fn start(own: &Path) -> Option<Self> {
        if !super::has(SSHD) {
            return None;
        }
        fs::create_dir(own).expect("the directory is new");
        for key in ["host", "other-host", "known", "unknown"] {
            let path = own.join(key);
            call("ssh-keygen", own)
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .args([&path])
                .run()
                .ok();
        }
        fs::copy(own.join("known.pub"), own.join("authorized")).expect("the key is there");
        // Whoever logs in has the files of nobody else's home.
        super::script(
            &own.join("shell"),
            &format!(
                "export PATH={} HOME='{}' GIT_CONFIG_NOSYSTEM=1\nexec sh -c \"$SSH_ORIGINAL_COMMAND\"\n",
                super::PATH,
                own.display()
            ),
        );
        if rustix::process::geteuid().is_root() {
            // What a boot makes; without it a server of root's does not start.
            fs::create_dir_all("/run/sshd").expect("root makes directories");
        }
        let (running, port) = super::listening(|port| {
            let config = own.join("sshd_config");
            fs::write(&config, server_config(own, port)).expect("the directory is writable");
            call(SSHD, own).args([
                "-D".as_ref(),
                "-e".as_ref(),
                "-f".as_ref(),
                config.as_os_str(),
            ])
        });
        let user = call("id", own).args(["-un"]).run().ok().stdout_text();
        let server = Self {
            own: own.to_owned(),
            user: user.trim().to_owned(),
            port,
            _running: running,
        };
        for client in [Client::Known, Client::Unknown, Client::Warned] {
            server.write_client(client);
        }
        Some(server)
    }

    /// The address of a repository, which is given by its absolute path.
    pub fn url(&self, path: &Path) -> String {
        format!(
            "ssh://{}@127.0.0.1:{}{}",
            self.user,
            self.port,
            path.display()
        )
    }

    /// A `PATH` on which ssh is that of `client`: OpenSSH with a configuration of its own, since it
    /// looks for that of the user without regard to HOME.
    pub fn path_of(&self, client: Client) -> String {
        let bin = self.own.join(format!("{client:?}"));
        format!("{}:{}", bin.display(), super::PATH)
    }

    fn write_client(&self, client: Client) {
        let bin = self.own.join(format!("{client:?}"));
        fs::create_dir(&bin).expect("the directory is writable");
        let host = if client == Client::Warned {
            "other-host.pub"
        } else {
            "host.pub"
        };
        let host = fs::read_to_string(self.own.join(host)).expect("the key is there");
        let known = format!("[127.0.0.1]:{} {host}", self.port);
        fs::write(bin.join("known_hosts"), known).expect("the directory is writable");
        let key = if client == Client::Unknown {
            "unknown"
        } else {
            "known"
        };
        let config = format!(
            "IdentityFile {}\nIdentitiesOnly yes\nIdentityAgent none\nUserKnownHostsFile {}\n\
             GlobalKnownHostsFile none\nStrictHostKeyChecking yes\n",
            self.own.join(key).display(),
            bin.join("known_hosts").display(),
        );
        fs::write(bin.join("config"), config).expect("the directory is writable");
        let config = bin.join("config");
        let exec = format!("exec /usr/bin/ssh -F '{}' \"$@\"\n", config.display());
        super::script(&bin.join("ssh"), &exec);
    }
}

fn call(program: &str, own: &Path) -> Call {
    Call::new(program, own).env("PATH", super::PATH)
}

fn server_config(own: &Path, port: u16) -> String {
    let own = own.display();
    format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {own}/host\nPidFile none\n\
         AuthorizedKeysFile {own}/authorized\nStrictModes no\nPermitRootLogin yes\n\
         PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n\
         ForceCommand {own}/shell\n"
    )
}
