//! After random changes of a work tree, git makes the same commit.

use super::*;

/// Numbers that look like chance, and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

const PATHS: [&str; 12] = [
    "a", "b", "c.log", "d", "d/a", "d/b", "d/c.log", "d/e/f", "d-x", "out/a", "out/b/c", "z",
];

const CONTENTS: [&[u8]; 6] = [
    b"one\n",
    b"two\r\ntwo\r\n",
    b"",
    b"\0\r\n\x01",
    b"mixed\r\nends\n",
    b"x",
];

fn remove(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
}

/// Does something; what is in the way of that goes.
fn disturb(story: &Story, dice: &mut Dice) {
    let name = dice.one(&PATHS);
    let path = story.path().join(name);
    let mut above = story.path();
    for part in Path::new(name).parent().unwrap().components() {
        above.push(part);
        if fs::symlink_metadata(&above).is_ok_and(|meta| !meta.is_dir()) {
            fs::remove_file(&above).unwrap();
        }
    }
    fs::create_dir_all(&above).unwrap();
    let is_there = fs::symlink_metadata(&path).is_ok();
    let is_file = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file());
    match dice.below(9) {
        0..4 => {
            if !is_file {
                remove(&path);
            }
            fs::write(&path, dice.one(&CONTENTS)).unwrap();
        }
        4 => remove(&path),
        5 if is_file => story.chmod(name, dice.one(&[0o644, 0o755])),
        6 => {
            remove(&path);
            symlink(dice.one(&["a", "nowhere"]), &path).unwrap();
        }
        7 if is_there => {
            // Ignored paths too.
            story.git.run(&story.path(), &["add", "-f", "--", name]);
        }
        8 => {
            story
                .git
                .run(&story.path(), &["rm", "-q", "-r", "--cached", "--", name]);
        }
        _ => {}
    }
}

#[test]
fn whatever_was_done_is_committed_as_git_commits_it() {
    let mut commits = 0;
    for seed in 0..16 {
        let mut dice = Dice(seed);
        let story = Story::unborn();
        story.git.write(".gitignore", "*.log\nout/\n");
        if seed % 2 == 0 {
            story.git.write(".gitattributes", "* text=auto\n");
        }
        for round in 0..5 {
            for _ in 0..dice.below(14) {
                disturb(&story, &mut dice);
            }
            // Of the others every object is loose.
            if seed % 4 >= 2 {
                story.pack();
            }
            let at = format!("seed {seed}, round {round}");
            let before = story.status();
            let theirs = story.tree_of_git();
            let intent = story.try_prepare(&request()).unwrap();
            let ours = intent.as_ref().map(|intent| intent.tree.clone());
            assert_eq!(ours, theirs, "{at}:\n{before}");
            if let Some(intent) = intent {
                story.apply(&intent);
                assert_eq!(story.status(), "", "{at}:\n{before}");
                story.is_sound();
                commits += 1;
            }
        }
    }
    assert!(commits > 50, "{commits}");
}
