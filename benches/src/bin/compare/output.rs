//! What is printed and written.

use std::fs;
use std::path::Path;

use stillframe_benches::case::{
    AFTER, AFTER_FRESH, AFTER_WATCHED, FIRST, NEW_FILES, OURS, PERSISTENT_INDEX, UNCHANGED,
    UNCHANGED_FRESH, UNCHANGED_WATCHED,
};
use stillframe_benches::{
    Growth, MOST_GROWTH_WATCHED, Times, bars, growth_table, lines, summary_of_targets, table,
    usage_table,
};

use crate::ground::Ground;
use crate::options::Options;

/// Says what was measured with `files` files.
pub(crate) fn size(files: usize, grounds: &[Ground<'_>], options: &Options) {
    let mut text = format!("# {files} files\n\n{}\n", conditions(options));
    for ground in grounds {
        text.push_str(&section(files, ground, options));
    }
    println!("{text}");
    if let Some(directory) = &options.write {
        write(directory, &format!("{files}.md"), &text);
        for ground in grounds {
            let title = format!("{}, medians of {} rounds", ground.title, options.rounds);
            write(
                directory,
                &picture(files, ground),
                &bars(&ground.times, &title),
            );
        }
    }
}

fn picture(files: usize, ground: &Ground<'_>) -> String {
    format!("{files}{}.svg", ground.suffix)
}

fn conditions(options: &Options) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cold = match options.cold {
        true => "measured",
        false => "left out: not asked for, or this user may not drop the page cache",
    };
    format!(
        "Medians of {} rounds, {cores} cores, Linux {}. Cold cases: {cold}. Ratios are Stillframe's \
         median divided by that of the row.\n",
        options.rounds,
        kernel.trim()
    )
}

fn section(files: usize, ground: &Ground<'_>, options: &Options) -> String {
    let mut text = format!("## {}\n\n", capitalized(&ground.title));
    if ground.suffix.is_empty() {
        let summary = summary_of_targets(&ground.times, files);
        if !summary.is_empty() {
            text.push_str(&format!(
                "What is to be reached:\n\n{summary}\nEverything:\n\n"
            ));
        }
    }
    if options.write.is_some() {
        text.push_str(&format!(
            "![{}]({})\n\n",
            ground.title,
            picture(files, ground)
        ));
    }
    // Targets are for repositories like source trees.
    let files = ground.suffix.is_empty().then_some(files);
    text.push_str(&table(&ground.times, files));
    let growths = match ground.suffix {
        "" => growth_with_changes(&ground.times),
        _ => ground.growth_with_bytes(),
    };
    if growths.iter().any(|growth| growth.points.len() > 1) {
        text.push_str(&format!("\n{}", growth_table(&growths)));
    }
    if !ground.used.is_empty() {
        text.push_str(&format!("\n{}", usage_table(&ground.used)));
    }
    text.push('\n');
    text
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// The line through the captures after no, 170 and more changes.
fn growth_with_changes(times: &Times) -> Vec<Growth> {
    let changes = |case: &str| match case {
        UNCHANGED => Some(0.0),
        AFTER => Some(170.0),
        case => case.strip_suffix(" modified files")?.parse().ok(),
    };
    let mut all = Vec::new();
    for case in times.cases() {
        let Some(changes) = changes(case) else {
            continue;
        };
        for subject in [OURS, PERSISTENT_INDEX] {
            if let Some(median) = times.median(case, subject) {
                let name = format!("walking, {subject}");
                let point = (changes, median.as_secs_f64() * 1e3);
                Growth::add(&mut all, &name, "changes", point);
            }
        }
    }
    all
}

/// Says how cost grows with the number of files, if there was more than one.
pub(crate) fn growth(done: &[(usize, Vec<Ground<'_>>)], options: &Options) {
    let mut all = Vec::new();
    for (files, grounds) in done {
        let Some(ground) = grounds.iter().find(|g| g.suffix.is_empty()) else {
            continue;
        };
        for (case, subject) in subjects_that_grow(&ground.times) {
            if let Some(median) = ground.times.median(case, &subject) {
                let name = format!("{case}: {subject}");
                let point = (*files as f64 / 1e3, median.as_secs_f64() * 1e3);
                Growth::add(&mut all, &name, "thousand files", point);
            }
        }
    }
    if all.iter().all(|growth| growth.points.len() < 2) {
        return;
    }
    let mut text = format!(
        "# Growth with the number of files\n\n{}\n{}",
        conditions(options),
        growth_table(&all)
    );
    let watched = |thousands: f64| {
        let growth = all
            .iter()
            .find(|g| g.name == format!("{AFTER_WATCHED}: {OURS}"))?;
        growth.points.iter().find(|p| p.0 == thousands).map(|p| p.1)
    };
    if let (Some(m), Some(l)) = (watched(100.0), watched(500.0)) {
        let verdict = match l / m <= MOST_GROWTH_WATCHED {
            true => "reached",
            false => "**not reached**",
        };
        text.push_str(&format!(
            "\nFrom 100,000 to 500,000 files the case \"{AFTER_WATCHED}\" grows {:.2} times; at most \
             {MOST_GROWTH_WATCHED}: {verdict}.\n",
            l / m
        ));
    }
    if let Some(directory) = &options.write {
        text.push_str("\n![Growth with the number of files](growth.svg)\n");
        let picture = lines(&all, "Growth with the number of files", "thousand files");
        write(directory, "growth.svg", &picture);
        write(directory, "growth.md", &text);
    }
    println!("{text}");
}

fn subjects_that_grow(times: &Times) -> Vec<(&'static str, String)> {
    let ours = [
        FIRST,
        UNCHANGED,
        UNCHANGED_FRESH,
        UNCHANGED_WATCHED,
        AFTER,
        AFTER_FRESH,
        AFTER_WATCHED,
        NEW_FILES,
    ];
    let mut all: Vec<_> = ours.map(|case| (case, OURS.to_owned())).into();
    let floors = times.of_case(UNCHANGED).into_iter();
    let floors = floors.filter(|row| row.subject.starts_with("floor"));
    all.extend(floors.map(|row| (UNCHANGED, row.subject.to_owned())));
    all.push((AFTER, PERSISTENT_INDEX.to_owned()));
    all
}

fn write(directory: &Path, name: &str, text: &str) {
    fs::create_dir_all(directory).expect("the directory of results can be made");
    fs::write(directory.join(name), text).expect("the results can be written");
}
