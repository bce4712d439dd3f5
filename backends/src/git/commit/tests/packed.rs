//! Commits in repositories whose objects are in packs.

use super::*;

/// What the commit at HEAD did, as git tells it, renames told apart from copies.
fn changes(story: &Story) -> Vec<String> {
    let args = ["diff", "HEAD^", "HEAD", "--name-status", "-M100%", "-l0"];
    story.git(&args).lines().map(str::to_owned).collect()
}

/// A repository with many files, some of them alike, of which every object lies in a pack.
fn with_docs() -> Story {
    let story = Story::unborn();
    for n in 0..300 {
        let path = format!("docs/part{}/page{n}", n % 7);
        story.git.write(path, format!("page {}\n", n / 2));
    }
    story.git.write("read me", "read me\n");
    story.git.commit("first");
    story.pack();
    assert_eq!(story.git(&["count-objects"]), "0 objects, 0 kilobytes");
    story
}

fn renames_its_docs(story: &Story) {
    fs::rename(
        story.path().join("docs"),
        story.path().join("documentation"),
    )
    .unwrap();
    let theirs = story.tree_of_git().unwrap();
    story.commit();
    assert_eq!(story.tree(), theirs);
    let changes = changes(story);
    assert_eq!(changes.len(), 300);
    for change in changes {
        assert!(change.starts_with("R100\tdocs/"), "{change}");
    }
    assert_eq!(story.status(), "");
    story.is_sound();
}

#[test]
fn a_directory_is_renamed() {
    renames_its_docs(&with_docs());
}

#[test]
fn a_directory_is_renamed_in_a_clone_that_has_no_object_of_its_own() {
    let story = with_docs();
    let clone = story.git.beside("clone");
    let to = clone.to_str().unwrap();
    story.git(&["clone", "-q", "--shared", ".", to]);
    renames_its_docs(&story.moved_to(&clone));
}

#[test]
fn files_that_are_alike_are_added_whether_or_not_a_pack_has_their_content() {
    let story = with_docs();
    for n in 0..40 {
        story
            .git
            .write(format!("copies/{n}"), format!("page {}\n", n % 9));
        story
            .git
            .write(format!("new/{n}"), format!("new {}\n", n % 5));
    }
    story.commits_as_git_does();
    let changes = changes(&story);
    assert_eq!(changes.len(), 80);
    assert!(changes.iter().all(|change| change.starts_with("A\t")));
}

#[test]
fn what_lies_in_several_packs_and_beside_them_is_found() {
    let story = with_docs();
    for pack in 0..3 {
        for n in 0..20 {
            story
                .git
                .write(format!("more/{pack}/{n}"), format!("{pack} {n}\n"));
        }
        story.git.commit("more");
        story.git(&["repack", "-dq"]);
    }
    story.git.write("loose/a", "loose\n");
    story.git.commit("loose");
    fs::rename(story.path().join("more"), story.path().join("moved")).unwrap();
    fs::rename(story.path().join("docs"), story.path().join("a-docs")).unwrap();
    fs::rename(story.path().join("loose"), story.path().join("z-loose")).unwrap();
    story.git.write("twice", "loose\n");
    let theirs = story.tree_of_git().unwrap();
    story.commit();
    assert_eq!(story.tree(), theirs);
    assert_eq!(changes(&story).len(), 300 + 60 + 2);
    assert_eq!(story.status(), "");
    story.is_sound();
}

#[test]
fn what_a_pack_lost_meanwhile_is_named_and_nothing_moves() {
    let story = with_docs();
    story.git.write("new/a", "new\n");
    story.git.write("new/b", "newer\n");
    let intent = story.prepare();
    // Housekeeping that removes unnamed objects at once.
    let lost = story.git.git(&["hash-object", "new/b"]);
    let object = format!(".git/objects/{}/{}", &lost[..2], &lost[2..]);
    fs::remove_file(story.path().join(object)).unwrap();
    let error = story.try_apply(&intent).unwrap_err();
    let CommitError::Failed { source, .. } = &error else {
        panic!("{error}");
    };
    assert!(source.to_string().contains(&lost), "{source}");
    assert_eq!(Some(story.git(&["rev-parse", "HEAD"])), intent.parent);
}
