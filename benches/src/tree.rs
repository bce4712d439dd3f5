//! Repositories to measure on, the same every time for the same arguments.

use std::fs;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::git::git;
use crate::random::Random;

/// How files are spread over directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Thirty a directory, up to ten levels deep, of sizes as in source trees.
    #[default]
    Mixed,
    /// One a directory, of a hundred bytes.
    TinyDirectories,
    /// All in one directory, of a hundred bytes.
    OneDirectory,
}

/// What a generated repository is like.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// How the files are spread. Default: [`Shape::Mixed`].
    pub shape: Shape,
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
            shape: Shape::Mixed,
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

/// The repository of these options below `directory`, which is made the first time, and made clean
/// again later: writing many files anew is slow, and slower where as many were deleted just before.
pub fn standing(directory: &Path, options: TreeOptions) -> io::Result<Tree> {
    let TreeOptions {
        shape,
        files,
        ignored_percent,
        seed,
    } = options;
    let home = directory.join(format!("{shape:?}-{files}-{ignored_percent}-{seed}"));
    let names = home.join("files");
    if !home.exists() {
        let unfinished = home.with_extension("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&unfinished)?;
        let tree = generate(&unfinished.join("tree"), options)?;
        let lines: Vec<&str> = tree.files.iter().filter_map(|f| f.to_str()).collect();
        fs::write(unfinished.join("files"), lines.join("\n"))?;
        fs::rename(&unfinished, &home)?;
    }
    let tree = Tree {
        path: home.join("tree"),
        files: fs::read_to_string(names)?.lines().map(Into::into).collect(),
    };
    if !git(&tree.path, &["status", "--porcelain"])?.is_empty() {
        git(&tree.path, &["reset", "-q", "--hard"])?;
        git(&tree.path, &["clean", "-q", "-f", "-d"])?;
        tree.settle()?;
    }
    Ok(tree)
}

impl Tree {
    /// Makes the index of the repository fresh, so that nothing has to be read to know that a file
    /// is as it was committed: what a clean repository is.
    pub fn settle(&self) -> io::Result<()> {
        wait_for_another_tick(&self.path)?;
        git(&self.path, &["update-index", "-q", "--refresh"])?;
        Ok(())
    }
}

/// Makes a repository at `path`, which does not exist yet.
///
/// Sizes follow a log-normal distribution around 4 KB, with a few files of up to a megabyte; the
/// tree is up to ten levels deep; everything is committed, in one pack, and the index is fresh.
pub fn generate(path: &Path, options: TreeOptions) -> io::Result<Tree> {
    let mut random = Random::new(options.seed);
    let words = words(&mut random);
    let pool = text(&mut random, &words, POOL_BYTES);
    let count = match options.shape {
        Shape::Mixed => options.files.div_ceil(FILES_PER_DIRECTORY),
        Shape::TinyDirectories => options.files,
        Shape::OneDirectory => 1,
    };
    let directories = directories(&mut random, &words, count);

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
        let directory = match options.shape {
            Shape::TinyDirectories => &directories[number],
            _ => &directories[random.below(directories.len())],
        };
        let name = directory.join(format!("{stem}_{number}.{extension}"));
        let content = match options.shape {
            Shape::Mixed => content(&mut random, &name, &pool),
            _ => format!("// {number:0>97}\n").into_bytes(),
        };
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
    git(path, &["reset", "-q", "--mixed", "HEAD"])?;
    let tree = Tree {
        path: path.to_owned(),
        files,
    };
    tree.settle()?;
    Ok(tree)
}

/// Waits until a file made now is younger than every file made before: until then git would have
/// to read files again whose time is that of its index.
fn wait_for_another_tick(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let probe = path.join(".git/tick");
    fs::write(&probe, b"")?;
    let first = fs::metadata(&probe)?;
    // git compares whole seconds where it was built without nanoseconds.
    while fs::metadata(&probe)?.mtime() <= first.mtime() {
        fs::write(&probe, b"")?;
        std::thread::yield_now();
    }
    fs::remove_file(&probe)
}

/// So much text the files of a repository are parts of.
const POOL_BYTES: usize = 4 << 20;

fn words(random: &mut Random) -> Vec<String> {
    (0..4000).map(|_| word(random)).collect()
}

/// The text that new files are parts of.
pub(crate) fn pool(random: &mut Random) -> Vec<u8> {
    let words = words(random);
    text(random, &words, POOL_BYTES)
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

/// Text that no other file has as a whole, of a size that source files have: `name` begins it, and
/// the rest is a part of `pool`.
pub(crate) fn content(random: &mut Random, name: &Path, pool: &[u8]) -> Vec<u8> {
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
    fn a_repository_of_each_shape_is_clean_and_stands_for_the_next_time() {
        let home = tempfile::tempdir().expect("a directory");
        for shape in [Shape::Mixed, Shape::TinyDirectories, Shape::OneDirectory] {
            let options = TreeOptions {
                shape,
                ..TreeOptions::new(100)
            };
            let tree = standing(home.path(), options).expect("made");
            let tracked = git(&tree.path, &["ls-files", "*_*"]).expect("listed");
            let tracked = String::from_utf8_lossy(&tracked).lines().count();
            assert!(
                tracked >= tree.files.len() && tree.files.len() > 90,
                "{shape:?}"
            );
            fs::write(tree.path.join("left.over"), "x").expect("written");
            fs::remove_file(tree.path.join(&tree.files[0])).expect("removed");
            let again = standing(home.path(), options).expect("found");
            assert_eq!(again.files, tree.files);
            let status = git(&again.path, &["status", "--porcelain"]).expect("a status");
            assert_eq!(String::from_utf8_lossy(&status), "");
        }
    }
}
