//! Merges of two commits. The oracle is `git merge-tree`.

use proptest::prelude::*;

use super::super::merge::merge;
use super::*;
use crate::checkpoint::MergeRequest;

/// What one side does to a file.
#[derive(Clone, Copy, Debug)]
enum Edit {
    Line(usize),
    Removed,
    Renamed,
    RenamedWithLine(usize),
    Executable,
    Link,
    Directory,
    New,
}

const FILES: [&str; 3] = ["a", "b", "c"];

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        6 => (0..9_usize).prop_map(Edit::Line),
        1 => Just(Edit::Removed),
        1 => Just(Edit::Renamed),
        2 => (0..9_usize).prop_map(Edit::RenamedWithLine),
        1 => Just(Edit::Executable),
        1 => Just(Edit::Link),
        1 => Just(Edit::Directory),
        1 => Just(Edit::New),
    ]
}

/// Edits of one side, each of another file.
fn edits() -> impl Strategy<Value = Vec<(usize, Edit)>> {
    prop::collection::btree_map(0..FILES.len(), edit(), 0..=FILES.len())
        .prop_map(|edits| edits.into_iter().collect())
}

fn lines(file: &str, changed: Option<(usize, &str)>) -> String {
    let line = |at| match changed {
        Some((changed, who)) if changed == at => format!("{file} {at} as {who} has it\n"),
        _ => format!("{file} {at} with a few words more\n"),
    };
    (0..9).map(line).collect()
}

impl Story {
    /// A commit of these edits on top of the base.
    fn side(&self, base: &str, who: &str, edits: &[(usize, Edit)]) -> String {
        self.git(&["checkout", "-q", "-f", "--detach", base]);
        self.git(&["clean", "-q", "-f", "-d", "-x"]);
        for (file, edit) in edits {
            let file = FILES[*file];
            let path = self.path().join(file);
            match edit {
                Edit::Line(at) => self.git.write(file, lines(file, Some((*at, who)))),
                Edit::Removed => fs::remove_file(path).unwrap(),
                Edit::Renamed | Edit::RenamedWithLine(_) => {
                    fs::remove_file(path).unwrap();
                    let changed = match edit {
                        Edit::RenamedWithLine(at) => Some((*at, who)),
                        _ => None,
                    };
                    self.git
                        .write(format!("{file} of {who}"), lines(file, changed));
                }
                Edit::Executable => {
                    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                    fs::set_permissions(path, mode).unwrap();
                }
                Edit::Link => {
                    fs::remove_file(&path).unwrap();
                    std::os::unix::fs::symlink(who, path).unwrap();
                }
                Edit::Directory => {
                    fs::remove_file(path).unwrap();
                    self.git.write(format!("{file}/of {who}"), "x\n");
                }
                Edit::New => self.git.write("new", format!("{who}\n")),
            }
        }
        self.git(&["add", "--all"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", who]);
        self.git(&["rev-parse", "HEAD"])
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn two_sides_are_merged_as_git_merges_them(ours in edits(), theirs in edits()) {
        let git = TestRepository::in_memory();
        for file in FILES {
            git.write(file, lines(file, None));
        }
        git.commit("base");
        let story = Story::of(git);
        story.snapshot();
        let base = story.git(&["rev-parse", "HEAD"]);
        let (ours, theirs) = (story.side(&base, "us", &ours), story.side(&base, "them", &theirs));
        let request = MergeRequest::new(TASK, 1, "merged\n", (&ours, &theirs));
        let op = Operation::unbounded();
        let made = merge(&op, &story.workspace, &story.store(), &request).unwrap();

        let by_git = ["-c", "merge.directoryRenames=false", "merge-tree", "--write-tree", &theirs, &ours];
        let by_git = story.git.run(&story.path(), &by_git);
        let tree = String::from_utf8(by_git.stdout).unwrap();
        match made {
            None if ours == theirs => unreachable!("they have different authors' messages"),
            None => {
                prop_assert!(!by_git.status.success(), "git merges it: {tree}");
                prop_assert_eq!(story.in_store(&["for-each-ref", "refs/checkpoints"]), "");
            }
            Some(made) => {
                prop_assert!(by_git.status.success(), "git does not: {tree}");
                let shown = story.in_store(&["log", "-1", "--format=%T %P", &made.commit]);
                prop_assert_eq!(shown, format!("{} {theirs} {ours}", tree.trim()));
                story.is_sound();
                story.reaches_all(&made.commit);
                // The same two give the same commit.
                let again = MergeRequest::new(TASK, 2, "merged\n", (&ours, &theirs));
                let again = merge(&op, &story.workspace, &story.store(), &again).unwrap();
                prop_assert_eq!(again.unwrap().commit, made.commit);
            }
        }
    }
}

#[test]
fn histories_without_a_common_commit_are_not_merged_and_those_with_several_are() {
    let story = Story::new();
    story.snapshot();
    let base = story.git(&["rev-parse", "HEAD"]);
    let tree = story.git(&["rev-parse", "HEAD^{tree}"]);
    let made = |parents: &[&str], message: &str| {
        let parents = parents.iter().flat_map(|parent| ["-p", parent]);
        let args = ["commit-tree", "-m", message].into_iter().chain(parents);
        let args: Vec<&str> = args.chain([&*tree]).collect();
        story.git(&args)
    };
    let merged = |one: &str, other: &str| {
        let request = MergeRequest::new(TASK, 1, "merged\n", (one, other));
        let op = Operation::unbounded();
        merge(&op, &story.workspace, &story.store(), &request).unwrap()
    };
    assert_eq!(merged(&base, &made(&[], "another beginning")), None);
    // Each goes on from both of the first two.
    let (one, other) = (made(&[&base], "one"), made(&[&base], "other"));
    let (left, right) = (
        made(&[&one, &other], "left"),
        made(&[&other, &one], "right"),
    );
    assert_eq!(story.in_store(&["for-each-ref", "refs/checkpoints"]), "");
    let made = merged(&left, &right).unwrap();
    let shown = story.in_store(&["log", "-1", "--format=%T %P", &made.commit]);
    assert_eq!(shown, format!("{tree} {right} {left}"));
}

#[test]
fn who_renames_what_the_other_has_made_a_link_of_is_not_followed() {
    for (ours, theirs) in [(Edit::Link, Edit::Renamed), (Edit::Renamed, Edit::Link)] {
        let git = TestRepository::in_memory();
        git.write(FILES[0], lines(FILES[0], None));
        git.commit("base");
        let story = Story::of(git);
        story.snapshot();
        let base = story.git(&["rev-parse", "HEAD"]);
        let sides = [("us", ours), ("them", theirs)];
        let [ours, theirs] = sides.map(|(who, edit)| story.side(&base, who, &[(0, edit)]));
        let request = MergeRequest::new(TASK, 1, "merged\n", (&ours, &theirs));
        let op = Operation::unbounded();
        let made = merge(&op, &story.workspace, &story.store(), &request).unwrap();
        assert_eq!(made, None);
        let by_git = ["merge-tree", "--write-tree", &theirs, &ours];
        let by_git = story.git.run(&story.path(), &by_git);
        assert!(!by_git.status.success());
    }
}
