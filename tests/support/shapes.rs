//! Repositories and directories of every shape that people have.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use walkdir::WalkDir;

use crate::workspace::make_fifo;
use crate::{TestWorkspace, git};

/// A shape: how to make a workspace of it, and what a capture of it is held against.
pub struct Shape {
    /// What it is called.
    pub name: &'static str,
    /// The backend that `auto` takes for it.
    pub backend: Backend,
    /// Makes one.
    pub make: fn() -> TestWorkspace,
}

/// The backend that `auto` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// git; the tree is compared with that of the oracle.
    Git,
    /// hash, because it is no repository or one that cannot be read.
    Hash,
}

/// The shape with this name.
#[track_caller]
pub fn named(name: &str) -> &'static Shape {
    SHAPES
        .iter()
        .find(|shape| shape.name == name)
        .unwrap_or_else(|| panic!("there is no shape called {name}"))
}

const fn git_shape(name: &'static str, make: fn() -> TestWorkspace) -> Shape {
    Shape {
        name,
        backend: Backend::Git,
        make,
    }
}

const fn hash_shape(name: &'static str, make: fn() -> TestWorkspace) -> Shape {
    Shape {
        name,
        backend: Backend::Hash,
        make,
    }
}

/// Every shape.
pub const SHAPES: &[Shape] = &[
    git_shape("clean", clean),
    git_shape("dirty", dirty),
    git_shape("unborn", unborn),
    git_shape("unborn_and_staged", unborn_and_staged),
    git_shape("unborn_and_empty", TestWorkspace::unborn),
    git_shape("empty_tree", empty_tree),
    git_shape("detached", detached),
    git_shape("branch_with_slashes", branch_with_slashes),
    git_shape("subdirectory", subdirectory),
    git_shape("untracked_subdirectory", untracked_subdirectory),
    git_shape("linked_worktree", linked_worktree),
    git_shape("submodule_inside", submodule_inside),
    git_shape("submodule_not_checked_out", submodule_not_checked_out),
    git_shape("submodule_as_workspace", submodule_as_workspace),
    git_shape("nested_repository", nested_repository),
    git_shape("nested_repository_unborn", nested_repository_unborn),
    git_shape("nested_worktree", nested_worktree),
    git_shape("separate_git_dir", separate_git_dir),
    git_shape("symlinks", symlinks),
    git_shape("executable_bits", executable_bits),
    git_shape("private_modes", private_modes),
    git_shape("kinds_swapped", kinds_swapped),
    git_shape("odd_names", odd_names),
    git_shape("wildcard_names", wildcard_names),
    git_shape("tracked_but_ignored", tracked_but_ignored),
    git_shape("nested_gitignore_with_negation", nested_gitignore),
    git_shape("info_exclude", info_exclude),
    git_shape("global_excludes", global_excludes),
    git_shape("configured_excludes_file", configured_excludes_file),
    git_shape("everything_ignored", everything_ignored),
    git_shape("autocrlf", autocrlf),
    git_shape("autocrlf_input", autocrlf_input),
    git_shape("eol_attributes", eol_attributes),
    git_shape("ident", ident),
    git_shape("filter", filter),
    git_shape("required_filter_missing", required_filter_missing),
    git_shape("working_tree_encoding", working_tree_encoding),
    git_shape("lfs_pointer", lfs_pointer),
    git_shape("intent_to_add", intent_to_add),
    git_shape("assume_unchanged", assume_unchanged),
    git_shape("skip_worktree_present", skip_worktree_present),
    git_shape("skip_worktree_absent", skip_worktree_absent),
    git_shape("sparse_cone", sparse_cone),
    git_shape("sparse_index", sparse_index),
    git_shape("sparse_patterns", sparse_patterns),
    git_shape("split_index", split_index),
    git_shape("index_version_4", index_version_4),
    git_shape("index_without_hash", index_without_hash),
    git_shape("untracked_cache", untracked_cache),
    git_shape("no_index", no_index),
    git_shape("staged_and_edited_again", staged_and_edited_again),
    git_shape("racily_clean", racily_clean),
    git_shape("merge_in_conflict", merge_in_conflict),
    git_shape("rebase_in_conflict", rebase_in_conflict),
    git_shape("cherry_pick_in_conflict", cherry_pick_in_conflict),
    git_shape("revert_in_conflict", revert_in_conflict),
    git_shape("bisect_in_progress", bisect_in_progress),
    git_shape("shallow", shallow),
    git_shape("partial_clone", partial_clone),
    git_shape("alternates", alternates),
    git_shape("packed", packed),
    git_shape("packed_refs_and_many_packs", many_packs),
    git_shape("read_only_objects", read_only_objects),
    git_shape("hard_links", hard_links),
    git_shape("special_files", special_files),
    git_shape("empty_directories", empty_directories),
    git_shape("binary_files", binary_files),
    git_shape("deep", deep),
    git_shape("many_files", many_files),
    git_shape("bare_flag_set", bare_flag_set),
    git_shape("worktree_config", worktree_config),
    git_shape("stash_and_notes", stash_and_notes),
    git_shape("same_content_everywhere", same_content_everywhere),
    git_shape("names_that_sort_oddly", names_that_sort_oddly),
    git_shape("unicode_names", unicode_names),
    git_shape("long_names", long_names),
    git_shape("link_text_odd", link_text_odd),
    git_shape("hooks_and_signing", hooks_and_signing),
    hash_shape("sha256", sha256),
    hash_shape("reftable", reftable),
    hash_shape("plain_directory", plain_directory),
    hash_shape("plain_with_default_names", plain_with_default_names),
];

fn clean() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write("src/main.rs", "fn main() {}\n");
    ws.write("src/lib/a.rs", "a\n");
    ws.write_executable("run.sh", "#!/bin/sh\necho hi\n");
    ws.symlink("link", "src/main.rs");
    ws.commit_settled("second");
    ws
}

fn dirty() -> TestWorkspace {
    let ws = clean();
    ws.write(".gitignore", "*.log\nbuild/\n");
    ws.write("staged", "staged\n");
    ws.git(["add", ".gitignore", "staged"]);
    ws.write("src/main.rs", "fn main() { edited() }\n");
    ws.remove("src/lib/a.rs");
    ws.write("untracked/deep/file", "untracked\n");
    ws.write("noise.log", "ignored\n");
    ws.write("build/out.o", "ignored\n");
    ws.remove("link");
    ws.git(["rm", "-q", "--cached", "run.sh"]);
    ws
}

fn unborn() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.write("a", "1\n");
    ws.write("d/b", "2\n");
    ws.write_executable("d/tool", "#!/bin/sh\n");
    ws
}

fn unborn_and_staged() -> TestWorkspace {
    let ws = unborn();
    ws.git(["add", "a"]);
    ws.write("a", "edited since\n");
    ws
}

fn empty_tree() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.git(["commit", "-q", "--allow-empty", "-m", "nothing"]);
    ws
}

fn detached() -> TestWorkspace {
    let ws = clean();
    ws.git(["checkout", "-q", "--detach"]);
    ws.write("new", "x\n");
    ws
}

fn branch_with_slashes() -> TestWorkspace {
    let ws = clean();
    ws.git(["checkout", "-q", "-b", "feature/deep/name"]);
    ws.git(["pack-refs", "--all"]);
    ws.write("new", "x\n");
    ws
}

fn subdirectory() -> TestWorkspace {
    let mut ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.tmp\n/sub/anchored\n");
    ws.write("sibling/file", "not in scope\n");
    ws.write("sub/kept", "1\n");
    ws.write("sub/inner/deep", "2\n");
    ws.write("sub/.gitignore", "*.o\n!wanted.o\n");
    ws.commit("second");
    ws.write("sub/kept", "edited\n");
    ws.write("sub/new", "3\n");
    ws.write("sub/wanted.o", "4\n");
    ws.write("sub/unwanted.o", "5\n");
    ws.write("sub/x.tmp", "6\n");
    ws.write("sub/anchored", "7\n");
    ws.write("sibling/new", "8\n");
    ws.set_root("work/sub");
    ws
}

fn untracked_subdirectory() -> TestWorkspace {
    let mut ws = TestWorkspace::repository();
    ws.write("new/dir/file", "1\n");
    ws.set_root("work/new");
    ws
}

fn linked_worktree() -> TestWorkspace {
    let mut ws = clean();
    ws.git(["worktree", "add", "-q", "-b", "side", "../linked"]);
    ws.set_root("linked");
    ws.write("src/main.rs", "edited in the linked worktree\n");
    ws.write("new", "x\n");
    ws.git(["add", "new"]);
    ws
}

/// `base/library`: a repository to be used as a submodule.
fn library(ws: &TestWorkspace) -> String {
    let dir = ws.base().join("library");
    fs::create_dir(&dir).expect("the directory is new");
    git::run(&ws.home(), &dir, ["init", "-q"]);
    fs::write(dir.join("lib.c"), "int lib;\n").expect("the directory is ours");
    fs::write(dir.join("other.c"), "int other;\n").expect("the directory is ours");
    git::run(&ws.home(), &dir, ["add", "-A"]);
    git::run(&ws.home(), &dir, ["commit", "-q", "-m", "library"]);
    dir.to_str().expect("paths of tests are text").to_owned()
}

fn submodule_inside() -> TestWorkspace {
    let ws = clean();
    let library = library(&ws);
    ws.git(["submodule", "--quiet", "add", &library, "vendor/lib"]);
    ws.commit("with a submodule");
    ws.write("vendor/lib/lib.c", "int edited;\n");
    ws.write("vendor/lib/new.c", "int new;\n");
    ws
}

fn submodule_not_checked_out() -> TestWorkspace {
    let ws = submodule_inside();
    ws.git(["submodule", "--quiet", "deinit", "-f", "vendor/lib"]);
    ws
}

fn submodule_as_workspace() -> TestWorkspace {
    let mut ws = submodule_inside();
    ws.set_root("work/vendor/lib");
    ws
}

fn nested_repository() -> TestWorkspace {
    let ws = clean();
    ws.write("inner/one", "1\n");
    ws.write("inner/two", "2\n");
    ws.git_in("work/inner", ["init", "-q"]);
    ws.git_in("work/inner", ["add", "-A"]);
    ws.git_in("work/inner", ["commit", "-q", "-m", "inner"]);
    ws.write("inner/one", "dirty\n");
    ws.write("inner/three", "untracked there\n");
    ws
}

fn nested_repository_unborn() -> TestWorkspace {
    let ws = clean();
    ws.write("inner/one", "1\n");
    ws.git_in("work/inner", ["init", "-q"]);
    ws
}

fn nested_worktree() -> TestWorkspace {
    let ws = clean();
    ws.git(["worktree", "add", "-q", "-b", "side", "trees/side"]);
    ws.write("trees/side/new", "x\n");
    ws
}

fn separate_git_dir() -> TestWorkspace {
    let ws = clean();
    ws.git(["init", "-q", "--separate-git-dir", "../elsewhere.git"]);
    ws.write("new", "x\n");
    ws
}

fn symlinks() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    fs::write(ws.outside().join("secret"), "never read\n").expect("the directory is ours");
    ws.write("dir/file", "1\n");
    ws.symlink("to-file", "dir/file");
    ws.symlink("to-dir", "dir");
    ws.symlink("dangling", "nowhere/at/all");
    ws.symlink("out", "../outside/secret");
    ws.symlink("out-dir", "../outside");
    ws.symlink("absolute", "/dev/zero");
    ws.symlink("to-self", "to-self");
    ws.symlink("circle-a", "circle-b");
    ws.symlink("circle-b", "circle-a");
    ws.symlink("dir/up", "..");
    ws.symlink("to-link", "to-dir");
    ws.commit("links");
    ws.remove("to-file");
    ws.symlink("to-file", "README");
    ws.symlink("untracked-link", "dir");
    ws
}

fn executable_bits() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write_executable("was", "x\n");
    ws.write("becomes", "x\n");
    ws.write_executable("stays", "x\n");
    ws.commit("modes");
    ws.chmod("was", 0o644);
    ws.chmod("becomes", 0o755);
    ws.write_executable("new", "x\n");
    ws
}

fn private_modes() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write("secret", "key\n");
    ws.chmod("secret", 0o600);
    ws.write("tool", "x\n");
    ws.chmod("tool", 0o700);
    ws.write("group", "x\n");
    ws.chmod("group", 0o664);
    ws.write("read-only", "x\n");
    ws.chmod("read-only", 0o444);
    ws.write("private/file", "x\n");
    ws.chmod("private", 0o700);
    ws.commit("modes");
    ws.write("untracked", "x\n");
    ws.chmod("untracked", 0o640);
    ws
}

fn kinds_swapped() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    for name in ["file-to-dir", "file-to-link", "file-to-nothing"] {
        ws.write(name, "file\n");
    }
    ws.write("dir-to-file/inside", "x\n");
    ws.write("dir-to-link/inside", "x\n");
    ws.symlink("link-to-file", "README");
    ws.symlink("link-to-dir", "README");
    ws.commit("kinds");
    for name in [
        "file-to-dir",
        "file-to-link",
        "file-to-nothing",
        "dir-to-file",
        "dir-to-link",
        "link-to-file",
        "link-to-dir",
    ] {
        ws.remove(name);
    }
    ws.write("file-to-dir/inside", "x\n");
    ws.symlink("file-to-link", "README");
    ws.write("dir-to-file", "file\n");
    ws.symlink("dir-to-link", "../outside");
    ws.write("link-to-file", "file\n");
    ws.write("link-to-dir/inside", "x\n");
    ws
}

fn odd_names() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    let names: [&[u8]; 22] = [
        b"newline\nin name",
        b"tab\tin name",
        b"quote\"in name",
        b"apostrophe's",
        b"back\\slash",
        b"-leading-dash",
        b"--help",
        b" leading space",
        b"trailing space ",
        b"trailing.dot.",
        b"not\xff\xfeutf8",
        b"d\xff/inside",
        b"escape\x1b[31m",
        b"bell\x07",
        b"CON",
        b"a:b",
        b"~",
        b"#hash",
        b"@",
        b"{}",
        b"$(touch fired)",
        b".hidden",
    ];
    for (at, name) in names.iter().enumerate() {
        ws.write(name, format!("{at}\n"));
    }
    ws.commit("odd names");
    ws.write(b"newline\nin name", "edited\n");
    ws.write(b"untracked\xff\n", "x\n");
    ws.remove("trailing space ");
    ws
}

fn wildcard_names() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    for name in ["*", "?", "[a]", "**", "a*b/c?d", "!not", ":(glob)x", ":/x"] {
        ws.write(name, format!("{name}\n"));
    }
    ws.commit("wildcards");
    ws.write("[b]", "untracked\n");
    ws.write("*", "edited\n");
    ws
}

fn tracked_but_ignored() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write("tracked.log", "1\n");
    ws.write("build/tracked", "2\n");
    ws.commit("before the rule");
    ws.write(".gitignore", "*.log\nbuild/\n");
    ws.commit("the rule");
    ws.write("tracked.log", "edited\n");
    ws.write("other.log", "ignored\n");
    ws.write("build/other", "ignored\n");
    ws
}

fn nested_gitignore() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write(
        ".gitignore",
        "*.o\n/top\nout/*\n!out/keep\n# comment\n\\#literal\nsp ace\n",
    );
    ws.write("a/.gitignore", "!wanted.o\n/anchored\nd?r/\n");
    ws.write("a/b/.gitignore", "*\n!.gitignore\n!kept\n");
    for name in [
        "x.o",
        "top",
        "a/top",
        "out/drop",
        "out/keep",
        "#literal",
        "sp ace",
        "a/wanted.o",
        "a/unwanted.o",
        "a/anchored",
        "a/b/anchored",
        "a/dir/file",
        "a/b/kept",
        "a/b/dropped",
        "a/b/c/kept",
    ] {
        ws.write(name, format!("{name}\n"));
    }
    ws
}

fn info_exclude() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write(".git/info/exclude", "secret*\n");
    ws.write("secret-plans", "x\n");
    ws.write("public", "x\n");
    ws
}

fn global_excludes() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    let dir = ws.home().join(".config/git");
    fs::create_dir_all(&dir).expect("HOME is ours");
    fs::write(dir.join("ignore"), "*.swp\n").expect("HOME is ours");
    ws.write("a.swp", "x\n");
    ws.write("b", "x\n");
    ws
}

fn configured_excludes_file() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    fs::write(
        ws.home().join(".gitconfig"),
        "[core]\n\texcludesFile = ~/my-ignores\n",
    )
    .expect("HOME is ours");
    fs::write(ws.home().join("my-ignores"), "*.swp\n").expect("HOME is ours");
    ws.write("a.swp", "x\n");
    ws.write("b", "x\n");
    ws
}

fn everything_ignored() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write("dir/tracked", "x\n");
    ws.commit("second");
    ws.write(".gitignore", "*\n");
    ws.write("dir/untracked", "x\n");
    ws
}

fn autocrlf() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.git(["config", "core.autocrlf", "true"]);
    ws.write("crlf", "a\r\nb\r\n");
    ws.write("lf", "a\nb\n");
    ws.write("mixed", "a\r\nb\n");
    ws.commit_settled("converted");
    ws
}

fn autocrlf_input() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.git(["config", "core.autocrlf", "input"]);
    ws.write("crlf", "a\r\nb\r\n");
    ws.write("lf", "a\nb\n");
    ws.commit_settled("converted");
    ws
}

fn eol_attributes() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.write(
        ".gitattributes",
        "*.txt text eol=crlf\n*.sh text eol=lf\n*.auto text=auto\n",
    );
    ws.write("a.txt", "one\r\ntwo\r\n");
    ws.write("lf.txt", "one\ntwo\n");
    ws.write("b.sh", "one\r\ntwo\r\n");
    ws.write("c.auto", "one\r\ntwo\r\n");
    ws.commit_settled("converted");
    ws.write("new.txt", "three\r\n");
    ws
}

fn ident() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.write(".gitattributes", "* ident\n");
    ws.write("file", "$Id$\n");
    ws.commit("ident");
    ws.remove("file");
    ws.git(["checkout", "--", "file"]);
    assert_ne!(ws.text("file"), "$Id$\n", "git has expanded it");
    ws.settle();
    ws
}

fn filter() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.git(["config", "filter.swap.clean", "tr a-z n-za-m"]);
    ws.git(["config", "filter.swap.smudge", "tr a-z n-za-m"]);
    ws.write(".gitattributes", "*.rot filter=swap\n");
    ws.write("same-size.rot", "abcdef\n");
    ws.write("plain", "abcdef\n");
    ws.commit_settled("filtered");
    ws
}

fn required_filter_missing() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write(".gitattributes", "*.bin filter=gone\n");
    ws.git(["config", "filter.gone.clean", "/nonexistent/program"]);
    ws.git(["config", "filter.gone.required", "true"]);
    ws.write("a.bin", "raw\n");
    ws.write("b", "x\n");
    ws
}

fn working_tree_encoding() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.write(
        ".gitattributes",
        "*.u16 text working-tree-encoding=UTF-16LE\n",
    );
    ws.write("a.u16", b"h\0i\0\n\0");
    ws.commit_settled("encoded");
    ws
}

fn lfs_pointer() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.write(
        ".gitattributes",
        "*.psd filter=lfs diff=lfs merge=lfs -text\n",
    );
    ws.git(["config", "filter.lfs.clean", "false"]);
    ws.git(["config", "filter.lfs.required", "true"]);
    ws.write("big.psd", "the raw bytes of a picture\n");
    ws
}

fn intent_to_add() -> TestWorkspace {
    let ws = clean();
    ws.write("intended", "x\n");
    ws.write("intended-and-gone", "x\n");
    ws.git(["add", "-N", "intended", "intended-and-gone"]);
    ws.remove("intended-and-gone");
    ws
}

fn assume_unchanged() -> TestWorkspace {
    let ws = clean();
    ws.git(["update-index", "--assume-unchanged", "README", "run.sh"]);
    ws.write("README", "edited behind git's back\n");
    ws.remove("run.sh");
    ws
}

fn skip_worktree_present() -> TestWorkspace {
    let ws = clean();
    ws.git(["update-index", "--skip-worktree", "README"]);
    ws.write("README", "local edit\n");
    ws
}

fn skip_worktree_absent() -> TestWorkspace {
    let ws = clean();
    ws.git(["update-index", "--skip-worktree", "src/lib/a.rs"]);
    ws.remove("src/lib/a.rs");
    ws
}

fn for_sparse() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    for name in ["in/a", "in/deep/b", "out/c", "out/deep/d", "other/e"] {
        ws.write(name, format!("{name}\n"));
    }
    ws.commit("second");
    ws
}

fn sparse_cone() -> TestWorkspace {
    let ws = for_sparse();
    ws.git(["sparse-checkout", "set", "--cone", "in"]);
    ws.write("in/a", "edited\n");
    ws
}

fn sparse_index() -> TestWorkspace {
    let ws = for_sparse();
    ws.git(["sparse-checkout", "set", "--cone", "--sparse-index", "in"]);
    ws.write("in/new", "x\n");
    ws
}

fn sparse_patterns() -> TestWorkspace {
    let ws = for_sparse();
    ws.git(["sparse-checkout", "set", "--no-cone", "/*", "!/out/deep/"]);
    ws.write("out/c", "edited\n");
    ws
}

fn split_index() -> TestWorkspace {
    let ws = clean();
    ws.git(["config", "core.splitIndex", "true"]);
    ws.git(["update-index", "--split-index"]);
    ws.write("later", "x\n");
    ws.git(["add", "later"]);
    ws.write("README", "edited\n");
    ws
}

fn index_version_4() -> TestWorkspace {
    let ws = clean();
    ws.git(["update-index", "--index-version", "4"]);
    ws.write("README", "edited\n");
    ws
}

fn index_without_hash() -> TestWorkspace {
    let ws = clean();
    ws.git(["config", "index.skipHash", "true"]);
    ws.write("README", "edited\n");
    ws.git(["add", "README"]);
    ws
}

fn untracked_cache() -> TestWorkspace {
    let ws = clean();
    ws.git(["config", "core.untrackedCache", "true"]);
    ws.git(["update-index", "--force-untracked-cache"]);
    ws.write("new", "x\n");
    ws.git(["status"]);
    ws.write("newer", "x\n");
    ws
}

fn no_index() -> TestWorkspace {
    let ws = clean();
    ws.remove(".git/index");
    ws
}

fn staged_and_edited_again() -> TestWorkspace {
    let ws = clean();
    ws.write("README", "staged\n");
    ws.git(["add", "README"]);
    ws.write("README", "edited again\n");
    ws.write("only-staged", "x\n");
    ws.git(["add", "only-staged"]);
    ws.remove("only-staged");
    ws
}

fn racily_clean() -> TestWorkspace {
    let ws = TestWorkspace::unborn();
    ws.write("file", "one\n");
    ws.commit("first");
    let meta = ws.stat("file");
    // The same size and mtime; git calls such an entry racily clean.
    ws.write("file", "two\n");
    ws.set_mtime("file", &meta);
    ws
}

/// Two branches that changed the same line; `main` is checked out.
fn for_conflict() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write("file", "base\n");
    ws.commit("base");
    ws.git(["checkout", "-q", "-b", "side"]);
    ws.write("file", "side\n");
    ws.write("from-side", "x\n");
    ws.commit("side");
    ws.git(["checkout", "-q", "main"]);
    ws.write("file", "main\n");
    ws.commit("main");
    ws
}

#[track_caller]
fn conflicting(ws: &TestWorkspace, args: &[&str]) {
    let output = ws.git_call(args).run();
    assert_ne!(output.code, 0, "git stops at a conflict: {output}");
    let unmerged = ws.git(["ls-files", "-u"]);
    assert_ne!(unmerged, "", "the index has conflict stages");
}

fn merge_in_conflict() -> TestWorkspace {
    let ws = for_conflict();
    conflicting(&ws, &["merge", "side"]);
    ws.write("untracked", "x\n");
    ws
}

fn rebase_in_conflict() -> TestWorkspace {
    let ws = for_conflict();
    conflicting(&ws, &["rebase", "side"]);
    ws
}

fn cherry_pick_in_conflict() -> TestWorkspace {
    let ws = for_conflict();
    conflicting(&ws, &["cherry-pick", "side"]);
    ws
}

fn revert_in_conflict() -> TestWorkspace {
    let ws = for_conflict();
    ws.write("file", "later\n");
    ws.commit("later");
    conflicting(&ws, &["revert", "--no-edit", "HEAD~1"]);
    ws
}

fn bisect_in_progress() -> TestWorkspace {
    let ws = for_conflict();
    ws.git(["bisect", "start", "HEAD", "HEAD~2"]);
    ws
}

/// Moves the work of `ws` aside to `base/origin` and clones it back with these options.
fn cloned(ws: &TestWorkspace, options: &[&str]) {
    let origin = ws.base().join("origin");
    fs::rename(ws.root(), &origin).expect("a directory can be renamed");
    git::run(
        &ws.home(),
        &origin,
        ["config", "uploadpack.allowFilter", "true"],
    );
    git::run(
        &ws.home(),
        &origin,
        ["config", "uploadpack.allowAnySHA1InWant", "true"],
    );
    let url = format!("file://{}", origin.display());
    let mut args = vec!["clone", "-q"];
    args.extend(options);
    args.extend([url.as_str(), "work"]);
    git::run(&ws.home(), ws.base(), args);
}

fn with_history() -> TestWorkspace {
    let ws = clean();
    for i in 0..5 {
        ws.write("changing", format!("version {i}\n"));
        ws.write(format!("added-{i}"), "x\n");
        ws.commit("more");
    }
    ws
}

fn shallow() -> TestWorkspace {
    let ws = with_history();
    cloned(&ws, &["--depth", "1"]);
    ws.write("changing", "edited\n");
    ws
}

fn partial_clone() -> TestWorkspace {
    let ws = with_history();
    cloned(&ws, &["--filter=blob:none"]);
    // Nobody may go and fetch what is not there.
    fs::rename(ws.base().join("origin"), ws.base().join("away")).expect("it can be renamed");
    // The index names a blob that is not here; the file on disk has its bytes.
    ws.write("changing", "edited\n");
    ws
}

fn alternates() -> TestWorkspace {
    let ws = with_history();
    let origin = ws.base().join("origin");
    fs::rename(ws.root(), &origin).expect("a directory can be renamed");
    let from = origin.to_str().expect("paths of tests are text");
    git::run(
        &ws.home(),
        ws.base(),
        ["clone", "-q", "--shared", from, "work"],
    );
    ws.write("new", "x\n");
    ws
}

fn packed() -> TestWorkspace {
    let ws = with_history();
    ws.git(["gc", "-q", "--prune=now"]);
    ws.write("changing", "edited\n");
    ws
}

fn many_packs() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    for i in 0..4 {
        ws.write(format!("file-{i}"), format!("{i}\n"));
        ws.commit("more");
        ws.git(["repack", "-q", "-d"]);
    }
    ws.git(["multi-pack-index", "write"]);
    ws.git(["commit-graph", "write", "--reachable"]);
    ws.git(["pack-refs", "--all"]);
    ws
}

fn read_only_objects() -> TestWorkspace {
    let ws = clean();
    for entry in WalkDir::new(ws.root().join(".git/objects"))
        .into_iter()
        .flatten()
    {
        let mode = if entry.file_type().is_dir() {
            0o555
        } else {
            0o444
        };
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode))
            .expect("the repository is ours");
    }
    ws.write("new", "x\n");
    ws
}

fn hard_links() -> TestWorkspace {
    let ws = clean();
    let outside = ws.outside().join("other-name");
    ws.hard_link("README", &outside);
    ws.write("one", "x\n");
    let second = ws.path("two");
    ws.hard_link("one", &second);
    ws
}

fn special_files() -> TestWorkspace {
    let ws = clean();
    make_fifo(&ws.path("pipe"));
    ws.mkdir("sockets");
    ws.socket("sockets/s");
    ws.write("sockets/beside", "x\n");
    ws
}

fn empty_directories() -> TestWorkspace {
    let ws = clean();
    ws.mkdir("empty");
    ws.mkdir("nested/empty/one");
    ws.mkdir("nested/empty/two");
    ws.mkdir("closed");
    ws.chmod("closed", 0o700);
    ws.write("with-link/.keep", "");
    ws
}

fn binary_files() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    let bytes: Vec<u8> = (0..200_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    ws.write("large.bin", &bytes);
    ws.write("nul", b"a\0b");
    ws.write("empty", "");
    ws.write("no-newline", "x");
    ws.commit("binary");
    ws.write("large.bin", &bytes[1..]);
    ws.write("new.bin", b"\xff\xfe\0");
    ws
}

fn deep() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    let mut path = String::new();
    for _ in 0..150 {
        path.push_str("d/");
    }
    ws.write(format!("{path}file"), "deep\n");
    ws
}

fn many_files() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    for i in 0..300 {
        ws.write(format!("d{}/f{i}", i % 17), format!("{i}\n"));
    }
    ws.commit("many");
    for i in (0..300).step_by(7) {
        ws.write(format!("d{}/f{i}", i % 17), "edited\n");
    }
    for i in 0..50 {
        ws.write(format!("new/{i}"), format!("{i}\n"));
    }
    ws
}

fn bare_flag_set() -> TestWorkspace {
    let ws = clean();
    ws.write("new", "x\n");
    ws.git(["config", "core.bare", "true"]);
    ws
}

fn worktree_config() -> TestWorkspace {
    let ws = clean();
    ws.git(["config", "extensions.worktreeConfig", "true"]);
    ws.git(["config", "--worktree", "core.ignoreCase", "false"]);
    ws.write("new", "x\n");
    ws
}

fn stash_and_notes() -> TestWorkspace {
    let ws = clean();
    ws.write("README", "stashed\n");
    ws.git(["stash", "-q"]);
    ws.git(["notes", "add", "-m", "a note"]);
    ws.git(["tag", "-a", "v1", "-m", "one"]);
    ws.write("README", "edited\n");
    ws
}

fn same_content_everywhere() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    for name in ["a", "b", "c/d", "c/e"] {
        ws.write(name, "same\n");
    }
    ws.symlink("link", "same\n");
    ws
}

fn names_that_sort_oddly() -> TestWorkspace {
    // git compares the names of directories as if they ended in a slash.
    let ws = TestWorkspace::repository();
    for name in ["a-b", "a/x", "a.b", "a0", "ab", "b/c", "b-", "b."] {
        ws.write(name, format!("{name}\n"));
    }
    ws.commit("second");
    ws.remove("a-b");
    ws.write("b.c", "x\n");
    ws
}

fn unicode_names() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    for name in [
        "ünïcode",
        "u\u{308}",
        "кириллица/файл",
        "日本語",
        "🦀.rs",
        "\u{202e}rtl",
    ] {
        ws.write(name, format!("{name}\n"));
    }
    ws.commit("second");
    ws.write("é", "untracked\n");
    ws
}

fn long_names() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write("n".repeat(255), "x\n");
    ws.write(format!("{}/{}", "d".repeat(200), "f".repeat(200)), "x\n");
    ws
}

fn link_text_odd() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.symlink("bytes", b"\xff\n\"");
    ws.symlink("long", "x/".repeat(1000));
    ws.symlink("absolute", "/etc/passwd");
    ws.symlink("git", ".git/config");
    ws
}

fn hooks_and_signing() -> TestWorkspace {
    let ws = clean();
    ws.git(["config", "commit.gpgSign", "true"]);
    ws.git(["config", "gpg.program", "/nonexistent"]);
    let hook = ws.root().join(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().expect("it has one")).expect("the repository is ours");
    fs::write(&hook, "#!/bin/sh\nexit 1\n").expect("the repository is ours");
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    ws.write("new", "x\n");
    ws
}

fn sha256() -> TestWorkspace {
    let ws = TestWorkspace::plain();
    ws.git(["init", "-q", "--object-format=sha256"]);
    ws.write("file", "x\n");
    ws.commit("first");
    ws.write("new", "x\n");
    ws
}

fn reftable() -> TestWorkspace {
    let ws = TestWorkspace::plain();
    ws.git(["init", "-q", "--ref-format=reftable"]);
    ws.write("file", "x\n");
    ws.commit("first");
    ws.write("new", "x\n");
    ws
}

fn plain_directory() -> TestWorkspace {
    let ws = TestWorkspace::plain();
    ws.write("a", "1\n");
    ws.write("d/b", "2\n");
    ws.write_executable("d/tool", "#!/bin/sh\n");
    ws.symlink("link", "d/b");
    ws.symlink("dangling", "nowhere");
    ws.write(b"odd\xff\n", "3\n");
    ws.mkdir("empty");
    ws
}

fn plain_with_default_names() -> TestWorkspace {
    let ws = plain_directory();
    for name in [
        "deps/x",
        "d/_build/y",
        "node_modules/z",
        "d/node_modules/w/v",
    ] {
        ws.write(name, "left out\n");
    }
    ws
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle;

    #[test]
    fn every_shape_can_be_made_and_git_gives_its_tree() {
        std::thread::scope(|scope| {
            for some in SHAPES.chunks(SHAPES.len() / 6) {
                scope.spawn(move || {
                    for shape in some {
                        let ws = (shape.make)();
                        if shape.backend == Backend::Git {
                            let tree = oracle::raw_tree(&ws);
                            assert_eq!(tree.len(), 40, "{}", shape.name);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn names_of_shapes_are_unique() {
        let mut names: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
