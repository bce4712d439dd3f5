//! What was measured, as a table and as a picture.

use std::fmt::Write as _;
use std::time::Duration;

use crate::measure::{Summary, Times};

/// The subject that the others are compared with.
pub const OURS: &str = "stillframe";

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// A number with three digits that tell something.
fn short(value: f64) -> String {
    let digits = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn ours(subjects: &[(&str, Summary)]) -> Option<Duration> {
    let (_, summary) = subjects.iter().find(|(name, _)| *name == OURS)?;
    Some(summary.median)
}

/// A Markdown table: for each case and subject the median, the spread, and our time divided by it.
pub fn table(times: &Times) -> String {
    let mut text = String::from(
        "| Case | Subject | Median, ms | Spread, ms | stillframe / this |\n|---|---|--:|--:|--:|\n",
    );
    for case in times.cases() {
        let subjects = times.of_case(case);
        let ours = ours(&subjects);
        for (subject, summary) in &subjects {
            let ratio = match ours {
                Some(ours) if *subject != OURS => {
                    short(ours.as_secs_f64() / summary.median.as_secs_f64())
                }
                _ => String::new(),
            };
            let spread = [summary.least, summary.most].map(|t| short(ms(t)));
            let _ = writeln!(
                text,
                "| {case} | {subject} | {} | {} to {} | {ratio} |",
                short(ms(summary.median)),
                spread[0],
                spread[1],
            );
        }
    }
    text
}

/// A picture (SVG) with a bar for each case and subject, on a logarithmic scale.
pub fn plot(times: &Times, title: &str) -> String {
    const LEFT: f64 = 330.0;
    const WIDTH: f64 = 520.0;
    const LINE: f64 = 18.0;
    let groups: Vec<(&String, Vec<(&str, Summary)>)> = times
        .cases()
        .iter()
        .map(|case| (case, times.of_case(case)))
        .collect();
    let all = groups.iter().flat_map(|(_, subjects)| subjects);
    let medians: Vec<f64> = all.map(|(_, summary)| ms(summary.median)).collect();
    let least = medians.iter().copied().fold(f64::MAX, f64::min).max(1e-3);
    let most = medians.iter().copied().fold(least * 10.0, f64::max);
    let (low, high) = (least.log10().floor(), most.log10().ceil());
    let x = |value: f64| LEFT + WIDTH * ((value.max(least).log10() - low) / (high - low));

    let lines: usize = groups.iter().map(|(_, subjects)| subjects.len() + 2).sum();
    let height = 60.0 + LINE * lines as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 920 {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let mut decade = low;
    while decade <= high {
        let at = x(10_f64.powf(decade));
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"40\" x2=\"{at:.1}\" y2=\"{height}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"36\" text-anchor=\"middle\" fill=\"#666\">{} ms</text>",
            10_f64.powf(decade)
        );
        decade += 1.0;
    }
    let mut y = 60.0;
    for (case, subjects) in &groups {
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{y:.1}\" font-weight=\"bold\">{}</text>",
            escaped(case)
        );
        y += LINE;
        for (subject, summary) in subjects {
            let colour = if *subject == OURS {
                "#1f6feb"
            } else {
                "#9aa4b2"
            };
            let (start, end) = (LEFT, x(ms(summary.median)));
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{start:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\" fill=\"#333\">{}</text>",
                LEFT - 8.0,
                escaped(subject),
                y - 10.0,
                (end - start).max(1.0),
                end + 6.0,
                short(ms(summary.median)),
            );
            y += LINE;
        }
        y += LINE;
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// The line through points by least squares: what is there at zero, and what each unit adds.
///
/// `None` for fewer than two places.
pub fn fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    if points.len() < 2 || spread == 0.0 {
        return None;
    }
    let slope = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread;
    Some((y - slope * x, slope))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> Times {
        let mut times = Times::default();
        times.add("a <case>", OURS, Duration::from_millis(10));
        times.add("a <case>", "git", Duration::from_millis(40));
        times
    }

    #[test]
    fn the_table_says_what_part_of_anothers_time_we_take() {
        let table = table(&times());
        assert!(table.contains("| a <case> | git | 40.0 | 40.0 to 40.0 | 0.250 |"));
        assert!(table.contains("| a <case> | stillframe | 10.0 | 10.0 to 10.0 |  |"));
    }

    #[test]
    fn the_picture_is_well_formed() {
        let plot = plot(&times(), "x & y");
        assert!(plot.contains("a &lt;case&gt;") && plot.contains("x &amp; y"));
        assert_eq!(plot.matches("<rect").count(), 3, "the ground and two bars");
        assert!(plot.ends_with("</svg>\n") && !plot.contains("NaN"));
    }

    #[test]
    fn a_line_is_found_through_points_on_it() {
        let (start, slope) = fit(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]).unwrap();
        assert!((start - 3.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9);
        assert_eq!(fit(&[(1.0, 5.0)]), None);
        assert_eq!(fit(&[(1.0, 5.0), (1.0, 6.0)]), None);
    }
}
