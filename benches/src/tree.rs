//! Repositories to measure on, the same every time for the same arguments.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::random::Random;

/// What a generated repository is like.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// Tracked files, ignore files left out.
    pub files: usize,
    /// Ignored files, as a percentage of `files`. Default: 5.
    pub ignored_percent: usize,
    /// Where the randomness begins. Default: 1.
    pub seed: u64,
}

impl TreeOptions {
    /// A repository of `files` files.
    pub fn new(files: usize) -> Self {
        Self {
            files,
            ignored_percent: 5,
            seed: 1,
        }
    }
}

/// A generated repository.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The work tree.
    pub path: PathBuf,
    /// The tracked regular files, relative to the work tree, in the order they were made.
    pub files: Vec<PathBuf>,
}

/// How many files a directory holds on average, as source trees have them.
const FILES_PER_DIRECTORY: usize = 30;

/// Makes a repository at `path`, which does not exist yet.
///
/// Sizes follow a log-normal distribution around 4 KB, with a few files of up to a megabyte; the
/// tree is up to ten levels deep; everything is committed, in one pack, and the index is fresh.
pub fn generate(path: &Path, options: TreeOptions) -> io::Result<Tree> {
    let mut random = Random::new(options.seed);
    let words: Vec<String> = (0..4000).map(|_| word(&mut random)).collect();
    let pool = text(&mut random, &words, 4 << 20);
    let directories = directories(
        &mut random,
        &words,
        options.files.div_ceil(FILES_PER_DIRECTORY),
    );

    fs::create_dir_all(path)?;
    git(path, &["init", "-q", "-b", "main"])?;
    for (key, value) in [
        ("user.name", "bench"),
        ("user.email", "bench@example.invalid"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
    ] {
        git(path, &["config", key, value])?;
    }
    for directory in &directories {
        fs::create_dir_all(path.join(directory))?;
    }
    let mut import = Command::new("git")
        .args(["fast-import", "--quiet", "--force"])
        .current_dir(path)
        .stdin(Stdio::piped())
        .spawn()?;
    let mut out = BufWriter::new(import.stdin.take().expect("it was piped"));
    out.write_all(
        b"commit refs/heads/main\ncommitter bench <bench@example.invalid> 1700000000 +0000\n\
          data 5\nbase\n\n",
    )?;
    let mut commit = |name: &Path, mode: &str, content: &[u8]| -> io::Result<()> {
        write!(
            out,
            "M {mode} inline {}\ndata {}\n",
            name.display(),
            content.len()
        )?;
        out.write_all(content)?;
        out.write_all(b"\n")
    };

    let extensions = ["rs", "ts", "py", "c", "h", "md", "json", "txt"];
    let mut files = Vec::with_capacity(options.files);
    for number in 0..options.files {
        let stem = random.pick(&words).clone();
        let extension = random.pick(&extensions);
        let name = directories[random.below(directories.len())]
            .join(format!("{stem}_{number}.{extension}"));
        let content = content(&mut random, &name, &pool);
        let disk_path = path.join(&name);
        let kind = random.below(1000);
        if kind < 3 {
            symlink("some/target", &disk_path)?;
            commit(&name, "120000", b"some/target")?;
            continue;
        }
        fs::write(&disk_path, &content)?;
        if kind < 23 {
            fs::set_permissions(&disk_path, fs::Permissions::from_mode(0o755))?;
            commit(&name, "100755", &content)?;
        } else {
            commit(&name, "100644", &content)?;
        }
        files.push(name);
    }
    let root_rules = b"target/\nnode_modules/\n*.o\n*.log\n/build/\n.env\n!.env.example\n*.tmp\n";
    fs::write(path.join(".gitignore"), root_rules)?;
    commit(Path::new(".gitignore"), "100644", root_rules)?;
    for directory in directories.iter().skip(1).step_by(50) {
        let name = directory.join(".gitignore");
        fs::write(path.join(&name), b"*.bak\n/gen/\n!keep.log\n")?;
        commit(&name, "100644", b"*.bak\n/gen/\n!keep.log\n")?;
    }
    out.flush()?;
    drop(out);
    if !import.wait()?.success() {
        return Err(io::Error::other("git fast-import failed"));
    }
    for number in 0..options.files * options.ignored_percent / 100 {
        let directory = path
            .join(["node_modules", "target"][number % 2])
            .join(format!("p{}", number / 40));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(format!("f{number}.js")), &pool[..1000])?;
    }
    wait_for_another_tick(path)?;
    git(path, &["reset", "-q", "--mixed", "HEAD"])?;
    git(path, &["update-index", "-q", "--refresh"])?;
    Ok(Tree {
        path: path.to_owned(),
        files,
    })
}

/// The edits of one run of an agent: 100 files modified, 50 made, 20 deleted, or fewer in a small
/// tree. The same paths every time; `nonce` makes the content new.
pub fn mutate(tree: &Tree, nonce: u64) -> io::Result<Mutation> {
    mutate_by(tree, nonce, 100, 50, 20)
}

/// As [`mutate`], with numbers of its own.
pub fn mutate_by(
    tree: &Tree,
    nonce: u64,
    modified: usize,
    added: usize,
    deleted: usize,
) -> io::Result<Mutation> {
    let mut random = Random::new(7);
    let mut picked = BTreeSet::new();
    let wanted = (modified + deleted).min(tree.files.len());
    while picked.len() < wanted {
        picked.insert(random.below(tree.files.len()));
    }
    let mut mutation = Mutation::default();
    for (place, file) in picked.iter().map(|at| &tree.files[*at]).enumerate() {
        let disk_path = tree.path.join(file);
        mutation.saved.push((
            disk_path.clone(),
            fs::read(&disk_path)?,
            fs::metadata(&disk_path)?.permissions(),
        ));
        if place % (modified + deleted) < deleted {
            fs::remove_file(&disk_path)?;
        } else {
            let mut content = fs::read(&disk_path)?;
            let middle = content
                .iter()
                .skip(content.len() / 2)
                .position(|b| *b == b'\n');
            let at = middle.map_or(0, |n| content.len() / 2 + n + 1);
            content.splice(at..at, format!("// edit {nonce}\n").into_bytes());
            fs::write(&disk_path, content)?;
        }
    }
    for number in 0..added {
        let beside = &tree.files[random.below(tree.files.len())];
        let disk_path = tree
            .path
            .join(beside)
            .with_file_name(format!("new_{number}.rs"));
        fs::write(&disk_path, format!("// new {nonce}\n").repeat(200))?;
        mutation.made.push(disk_path);
    }
    Ok(mutation)
}

/// What a mutation changed, so that it can be taken back.
#[derive(Debug, Default)]
pub struct Mutation {
    saved: Vec<(PathBuf, Vec<u8>, fs::Permissions)>,
    made: Vec<PathBuf>,
}

impl Mutation {
    /// Puts every file back. Times are new, as after any edit.
    pub fn revert(self) -> io::Result<()> {
        for path in self.made {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        for (path, content, permissions) in self.saved {
            fs::write(&path, content)?;
            fs::set_permissions(&path, permissions)?;
        }
        Ok(())
    }
}

/// Waits until a file made now is younger than every file made before: until then git would have
/// to read files again whose time is that of its index.
fn wait_for_another_tick(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let probe = path.join(".git/tick");
    fs::write(&probe, b"")?;
    let first = fs::metadata(&probe)?;
    // git compares whole seconds where it was built without nanoseconds.
    while fs::metadata(&probe)?.mtime() <= first.mtime() + 1 {
        fs::write(&probe, b"")?;
        std::thread::yield_now();
    }
    fs::remove_file(&probe)
}

/// Runs git in `path` with no configuration but the repository's own; answers with its output.
pub fn git(path: &Path, arguments: &[&str]) -> io::Result<Vec<u8>> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(path)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("git {arguments:?}: {message}")));
    }
    Ok(output.stdout)
}

fn word(random: &mut Random) -> String {
    let length = 2 + random.below(10);
    (0..length)
        .map(|_| char::from(b"abcdefghijklmnopqrstuvwxyz_"[random.below(27)]))
        .collect()
}

/// Text that compresses like source code.
fn text(random: &mut Random, words: &[String], bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 100);
    while out.len() < bytes {
        out.extend_from_slice(&b"                "[..4 * random.below(5)]);
        for _ in 0..1 + random.below(9) {
            out.extend_from_slice(random.pick(words).as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice([";\n", "{\n", "\n", "),\n"][random.below(4)].as_bytes());
    }
    out
}

fn directories(random: &mut Random, words: &[String], count: usize) -> Vec<PathBuf> {
    let mut directories = vec![PathBuf::new()];
    while directories.len() < count.max(1) {
        let parent = &directories[random.below(directories.len())];
        if parent.components().count() < 9 {
            let name = format!("{}{}", random.pick(words), directories.len());
            directories.push(parent.join(name));
        }
    }
    directories
}

fn content(random: &mut Random, name: &Path, pool: &[u8]) -> Vec<u8> {
    let size = if random.fraction() < 0.004 {
        (100 << 10) + random.below(900 << 10)
    } else {
        ((8.3 + random.normal()).exp() as usize).min(96 << 10)
    };
    let start = random.below(pool.len() - size.min(pool.len() - 1));
    let mut content = format!("// {}\n", name.display()).into_bytes();
    content.extend_from_slice(&pool[start..(start + size).min(pool.len())]);
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_arguments_give_the_same_repository_and_a_clean_one() {
        let home = tempfile::tempdir().expect("a directory");
        let make =
            |name: &str| generate(&home.path().join(name), TreeOptions::new(300)).expect("made");
        let (one, other) = (make("one"), make("other"));
        let tree = |tree: &Tree| git(&tree.path, &["rev-parse", "HEAD^{tree}"]).expect("a tree");
        assert_eq!(tree(&one), tree(&other), "one seed, one tree");
        let status = git(&one.path, &["status", "--porcelain"]).expect("a status");
        assert_eq!(
            String::from_utf8_lossy(&status),
            "",
            "everything is committed or ignored"
        );
    }

    #[test]
    fn a_mutation_that_is_reverted_leaves_the_content_as_it_was() {
        let home = tempfile::tempdir().expect("a directory");
        let tree = generate(&home.path().join("r"), TreeOptions::new(300)).expect("made");
        let mutation = mutate(&tree, 1).expect("mutated");
        let status = git(&tree.path, &["status", "--porcelain", "-uall"]).expect("a status");
        let lines = |kind: &str| {
            String::from_utf8_lossy(&status)
                .lines()
                .filter(|l| l.starts_with(kind))
                .count()
        };
        assert_eq!((lines(" M"), lines("??"), lines(" D")), (100, 50, 20));
        mutation.revert().expect("reverted");
        let status = git(&tree.path, &["status", "--porcelain"]).expect("a status");
        assert_eq!(String::from_utf8_lossy(&status), "");
    }
}
