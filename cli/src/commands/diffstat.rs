//! How much changed in each file, drawn as `git diff --stat` does (`show_stats` of its `diff.c`).
//! Pure.

use crate::paint::{Colour, Paint};

/// How wide a line is at most, in characters, unless its name alone is wider: names are never cut.
const WIDTH: usize = 80;

/// The shortest of what the longest bar may be.
const MIN_BAR: usize = 6;

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Printable.
    pub(super) name: String,
    pub(super) changed: Changed,
}

/// How much changed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    Lines {
        insertions: u64,
        deletions: u64,
    },
    /// It is binary; how many bytes either side has.
    Binary {
        old: u64,
        new: u64,
    },
}

impl Changed {
    fn lines(self) -> u64 {
        match self {
            Self::Lines {
                insertions,
                deletions,
            } => insertions.saturating_add(deletions),
            Self::Binary { .. } => 0,
        }
    }
}

/// Draws a line for each row, with a bar of `+` and `-`, one below the other.
pub(super) fn drawn(rows: &[Row], paint: Paint) -> String {
    let columns = Columns::of(rows);
    rows.iter().map(|row| columns.line(row, paint)).collect()
}

/// How wide the parts of a line are, in characters.
struct Columns {
    name: usize,
    number: usize,
    bar: usize,
    /// The most lines that changed in a file.
    most: u64,
}

impl Columns {
    fn of(rows: &[Row]) -> Self {
        let width = |number: u64| number.to_string().len();
        let most = rows.iter().map(|row| row.changed.lines()).max();
        let most = most.unwrap_or(0);
        let name = rows.iter().map(|row| row.name.chars().count()).max();
        let name = name.unwrap_or(0);
        // What comes after "Bin " takes the place of a bar.
        let binary = rows.iter().filter_map(|row| match row.changed {
            Changed::Binary { old, new } => {
                Some(" -> ".len() + " bytes".len() + width(old) + width(new))
            }
            Changed::Lines { .. } => None,
        });
        let binary = binary.max();
        let number = width(most).max(binary.map_or(0, |_| "Bin".len()));
        let wanted = usize::try_from(most).unwrap_or(usize::MAX);
        let wanted = wanted.max(binary.unwrap_or(0));
        Self {
            name,
            number,
            bar: bar_width(name, number, wanted),
            most,
        }
    }

    fn line(&self, row: &Row, paint: Paint) -> String {
        let name = format!("{:width$}", row.name, width = self.name);
        let number = self.number;
        match row.changed {
            Changed::Binary { old: 0, new: 0 } => format!("{name} | {:>number$}\n", "Bin"),
            Changed::Binary { old, new } => {
                let (old, new) = (old.to_string(), new.to_string());
                let old = paint.text(Colour::Red, &old);
                let new = paint.text(Colour::Green, &new);
                format!("{name} | {:>number$} {old} -> {new} bytes\n", "Bin")
            }
            Changed::Lines {
                insertions,
                deletions,
            } => {
                let lines = row.changed.lines();
                let [plus, minus] = self.bars(insertions, deletions);
                let plus = paint.text(Colour::Green, &"+".repeat(plus));
                let minus = paint.text(Colour::Red, &"-".repeat(minus));
                let space = if lines > 0 { " " } else { "" };
                format!("{name} | {lines:>number$}{space}{plus}{minus}\n")
            }
        }
    }

    /// How many signs stand for lines that came and lines that went.
    fn bars(&self, insertions: u64, deletions: u64) -> [usize; 2] {
        let all = |lines: u64| usize::try_from(lines).unwrap_or(usize::MAX);
        if self.most < self.bar as u64 {
            return [all(insertions), all(deletions)];
        }
        let mut total = self.scaled(insertions.saturating_add(deletions));
        if insertions > 0 && deletions > 0 {
            total = total.max(2);
        }
        match insertions < deletions {
            true => {
                let plus = self.scaled(insertions);
                [plus, total.saturating_sub(plus)]
            }
            false => {
                let minus = self.scaled(deletions);
                [total.saturating_sub(minus), minus]
            }
        }
    }

    /// As many signs as lines, in proportion, and at least one for any.
    fn scaled(&self, lines: u64) -> usize {
        if lines == 0 {
            return 0;
        }
        let signs = u128::from(lines) * (self.bar as u128 - 1) / u128::from(self.most.max(1));
        1 + usize::try_from(signs).unwrap_or(0)
    }
}

/// How wide the longest bar is of which `wanted` characters would be drawn.
fn bar_width(name: usize, number: usize, wanted: usize) -> usize {
    // Spaces and the line between the parts.
    let rest = number + 6;
    if (name + rest).saturating_add(wanted) <= WIDTH {
        return wanted;
    }
    let least = (WIDTH * 3 / 8).saturating_sub(rest).max(MIN_BAR);
    let bar = wanted.min(least);
    match name + rest + bar > WIDTH {
        true => bar,
        false => WIDTH - rest - name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(name: &str, insertions: u64, deletions: u64) -> Row {
        Row {
            name: name.to_owned(),
            changed: Changed::Lines {
                insertions,
                deletions,
            },
        }
    }

    fn binary(name: &str, old: u64, new: u64) -> Row {
        Row {
            name: name.to_owned(),
            changed: Changed::Binary { old, new },
        }
    }

    fn plain(rows: &[Row]) -> String {
        drawn(rows, Paint::default())
    }

    #[test]
    fn lines_stand_one_below_the_other_and_bytes_in_their_place() {
        assert_eq!(
            plain(&[
                lines("a", 2, 1),
                binary("long/name", 10, 2000),
                lines("mode", 0, 0),
                binary("same", 0, 0),
                lines("z", 0, 12),
            ]),
            "a         |   3 ++-\n\
             long/name | Bin 10 -> 2000 bytes\n\
             mode      |   0\n\
             same      | Bin\n\
             z         |  12 ------------\n"
        );
        assert_eq!(plain(&[]), "");
    }

    #[test]
    fn what_would_not_fit_is_drawn_in_proportion_and_no_name_is_cut() {
        let rows = [
            lines("long/name", 400, 100),
            lines("x", 1, 1),
            lines("y", 1, 0),
        ];
        let expected = format!(
            "long/name | 500 {}{}\nx         |   2 +-\ny         |   1 +\n",
            "+".repeat(49),
            "-".repeat(13)
        );
        assert_eq!(plain(&rows), expected);
        let name = "n".repeat(90);
        let text = plain(&[lines(&name, 400, 100)]);
        assert!(text.starts_with(&format!("{name} | 500 ++")), "{text}");
    }

    #[test]
    fn the_largest_counts_are_drawn() {
        let text = plain(&[lines("a", u64::MAX, u64::MAX), lines("b", 0, 1)]);
        assert_eq!(text.lines().count(), 2);
    }
}
