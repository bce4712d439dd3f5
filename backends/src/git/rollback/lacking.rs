//! Objects that the repository lacks: the message about them, and what is therefore not restored.

use crate::error::ErrorKind;
use crate::git::history::Lacking;
use crate::git::lost::Lost;
use crate::repository_changes::RepositoryProblem;

/// What keeps HEAD and branches from going back to commits of which this is lacking, a problem for
/// each kind of it.
pub(super) fn of_history(lacking: &Lacking) -> Vec<RepositoryProblem> {
    let (unread, gone) = by_obstacle(&lacking.content);
    let (unread_commits, gone_commits) = by_obstacle(&lacking.commits);
    let mut problems = Vec::new();
    if let [first, ..] = gone_commits[..] {
        let message = format!("commit {} is in no snapshot in order any more", first.id);
        problems.push(RepositoryProblem::new(ErrorKind::Corrupt, message));
    }
    if let [first, ..] = unread_commits[..] {
        let what = format!("commit {}", first.id);
        problems.extend(unreadable(first, &what));
    }
    let content = |count: usize, first: &Lost| {
        format!(
            "content of the commits that were to come back, {count} objects such as {}",
            first.id
        )
    };
    if let [first, ..] = gone[..] {
        let message = format!(
            "the repository has lost {}, which was purged from the snapshot or is damaged there",
            content(gone.len(), first)
        );
        problems.push(RepositoryProblem::new(ErrorKind::Corrupt, message));
    }
    if let [first, ..] = unread[..] {
        let what = content(unread.len(), first) + ",";
        problems.extend(unreadable(first, &what));
    }
    problems
}

/// What of the index to come is lacking, in words: for a sentence that says what names it.
pub(super) fn of_index(lacking: &[Lost]) -> Option<RepositoryProblem> {
    let first = lacking.first()?;
    let mut message = match lacking.len() {
        1 => format!("an object that the repository lacks, {}", first.id),
        count => format!(
            "{count} objects that the repository lacks, such as {}",
            first.id
        ),
    };
    let (held_up, gone) = by_obstacle(lacking);
    let obstacle = held_up.first().and_then(|lost| lost.obstacle.as_ref());
    if let Some((lost, obstacle)) = held_up.first().zip(obstacle) {
        message.push_str(&format!(
            " ({} cannot be given back: {})",
            lost.id, obstacle.message
        ));
    }
    let kind = obstacle.filter(|_| gone.is_empty());
    let kind = kind.map_or(ErrorKind::Corrupt, |obstacle| obstacle.kind);
    Some(RepositoryProblem::new(kind, message))
}

/// Those that something keeps from coming back, and those that are gone for good.
fn by_obstacle(lost: &[Lost]) -> (Vec<&Lost>, Vec<&Lost>) {
    lost.iter().partition(|lost| lost.obstacle.is_some())
}

fn unreadable(lost: &Lost, what: &str) -> Option<RepositoryProblem> {
    let obstacle = lost.obstacle.as_ref()?;
    let message = format!(
        "what the snapshot keeps of {what} cannot be read: {}",
        obstacle.message
    );
    Some(RepositoryProblem::new(obstacle.kind, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::PathError;
    use crate::git::ObjectId;
    use crate::store_error::StoreError;

    fn id(digit: &str) -> ObjectId {
        digit.repeat(40).parse().unwrap()
    }

    fn unread(digit: &str) -> Lost {
        let refused = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let error = StoreError::Io(PathError::at("open", "pack")(refused));
        Lost::unread(id(digit), &error)
    }

    fn damaged(digit: &str) -> Lost {
        Lost::unread(id(digit), &StoreError::corrupt(digit, "it is damaged"))
    }

    #[test]
    fn what_cannot_be_read_is_not_told_as_purged_or_damaged() {
        let told = |commits: &[Lost], content: &[Lost]| {
            of_history(&Lacking {
                commits: commits.to_vec(),
                content: content.to_vec(),
                ..Lacking::default()
            })
        };
        assert_eq!(told(&[], &[]), []);
        let [problem] = &told(&[], &[damaged("1")])[..] else {
            panic!("it is told");
        };
        assert_eq!(problem.kind, ErrorKind::Corrupt);
        assert!(problem.message.contains("purged"), "{problem:?}");
        for told in [told(&[], &[unread("2")]), told(&[unread("2")], &[])] {
            let [problem] = &told[..] else {
                panic!("it is told: {told:?}");
            };
            let message = &problem.message;
            assert!(message.contains("permission denied"), "{message}");
            assert!(message.contains(&id("2").to_string()), "{message}");
            assert!(!message.contains("purged"), "{message}");
            assert_ne!(problem.kind, ErrorKind::Corrupt);
        }
        let all = told(
            &[damaged("1"), unread("2")],
            &[unread("3"), damaged("4"), damaged("5")],
        );
        let all: Vec<&str> = all.iter().map(|problem| &*problem.message).collect();
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(all[2].contains("2 objects such as"), "{all:?}");
    }

    #[test]
    fn what_an_index_would_lack_is_told_with_what_keeps_it_away() {
        assert_eq!(of_index(&[]), None);
        let gone = of_index(&[damaged("1"), damaged("2")]).unwrap();
        assert_eq!(gone.kind, ErrorKind::Corrupt);
        assert!(gone.message.starts_with("2 objects"), "{gone:?}");
        let held_up = of_index(&[unread("1")]).unwrap();
        assert_ne!(held_up.kind, ErrorKind::Corrupt);
        assert!(held_up.message.contains("permission denied"), "{held_up:?}");
        let both = of_index(&[damaged("2"), unread("1")]).unwrap();
        assert_eq!(both.kind, ErrorKind::Corrupt);
        assert!(both.message.contains("permission denied"), "{both:?}");
    }
}
