//! What was measured, as pictures (SVG).

use std::fmt::Write as _;

use crate::growth::Growth;
use crate::measure::Times;
use crate::report::{is_ours, ms, short};

const OURS_COLOUR: &str = "#1f6feb";
const FLOOR_COLOUR: &str = "#2da44e";
const OTHERS_COLOUR: &str = "#9aa4b2";

/// Colours that can be told apart, also by those who see red and green as one (Okabe and Ito).
const LINES: [&str; 7] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000",
];

/// A bar for each case and subject that was measured, on a logarithmic scale.
pub fn bars(times: &Times, title: &str) -> String {
    const LEFT: f64 = 330.0;
    const WIDTH: f64 = 520.0;
    const LINE: f64 = 18.0;
    const TOP: f64 = 92.0;
    let groups: Vec<(&str, Vec<(&str, f64)>)> = times
        .cases()
        .iter()
        .map(|case| (case.as_str(), measured(times, case)))
        .collect();
    let scale = Scale::of(groups.iter().flat_map(|(_, s)| s.iter().map(|(_, ms)| *ms)));
    let x = |value: f64| LEFT + WIDTH * scale.share(value);
    let lines: usize = groups.iter().map(|(_, subjects)| subjects.len() + 2).sum();
    let height = TOP + LINE * lines as f64;
    let mut svg = opening(920.0, height, title);
    legend(
        &mut svg,
        &[
            (OURS_COLOUR, "stillframe and its parts"),
            (FLOOR_COLOUR, "floor"),
            (OTHERS_COLOUR, "others"),
        ],
    );
    for (value, label) in scale.decades() {
        let at = x(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"72\" x2=\"{at:.1}\" y2=\"{height}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"66\" text-anchor=\"middle\" fill=\"#666\">{label} ms</text>",
        );
    }
    let mut y = TOP;
    for (case, subjects) in &groups {
        let case = escaped(case);
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{y:.1}\" font-weight=\"bold\">{case}</text>"
        );
        y += LINE;
        for (subject, ms) in subjects {
            let colour = match subject {
                s if is_ours(s) => OURS_COLOUR,
                s if s.starts_with(crate::case::FLOOR) => FLOOR_COLOUR,
                _ => OTHERS_COLOUR,
            };
            let end = x(*ms);
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>\
                 <rect class=\"bar\" x=\"{LEFT:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{y:.1}\" fill=\"#333\">{}</text>",
                LEFT - 8.0,
                escaped(subject),
                y - 10.0,
                (end - LEFT).max(1.0),
                end + 6.0,
                short(*ms),
            );
            y += LINE;
        }
        y += LINE;
    }
    svg.push_str("</svg>\n");
    svg
}

fn measured<'t>(times: &'t Times, case: &str) -> Vec<(&'t str, f64)> {
    let rows = times.of_case(case).into_iter();
    rows.filter_map(|row| Some((row.subject, ms(row.result.ok()?.median))))
        .collect()
}

/// A line for each growth, on logarithmic scales: cost that follows the size rises with the grid,
/// cost that does not is level.
pub fn lines(growths: &[Growth], title: &str, x_label: &str) -> String {
    const LEFT: f64 = 80.0;
    const TOP: f64 = 50.0;
    const WIDTH: f64 = 480.0;
    const HEIGHT: f64 = 380.0;
    let points = || growths.iter().flat_map(|g| g.points.iter());
    let across = Scale::of(points().map(|p| p.0));
    let up = Scale::of(points().map(|p| p.1));
    let x = |value: f64| LEFT + WIDTH * across.share(value);
    let y = |value: f64| TOP + HEIGHT * (1.0 - up.share(value));
    let bottom = TOP + HEIGHT;
    let height = (bottom + 60.0).max(TOP + 20.0 * growths.len() as f64 + 20.0);
    let mut svg = opening(1040.0, height, title);
    for (value, label) in across.decades() {
        let at = x(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#666\">{label}</text>",
            bottom + 18.0
        );
    }
    for (value, label) in up.decades() {
        let at = y(value);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#666\">{label}</text>",
            LEFT + WIDTH,
            LEFT - 8.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate(20 {:.1}) rotate(-90)\" text-anchor=\"middle\">median, ms</text>",
        LEFT + WIDTH / 2.0,
        bottom + 42.0,
        escaped(x_label),
        TOP + HEIGHT / 2.0
    );
    for (number, growth) in growths.iter().enumerate() {
        let colour = LINES[number % LINES.len()];
        // Beyond the colours, what is dashed is another line.
        let dash = match number / LINES.len() {
            0 => "",
            _ => " stroke-dasharray=\"6 4\"",
        };
        let path: Vec<String> = growth
            .points
            .iter()
            .map(|(at, ms)| format!("{:.1},{:.1}", x(*at), y(*ms)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            path.join(" ")
        );
        for point in &path {
            let (cx, cy) = point.split_once(',').expect("two numbers");
            let _ = writeln!(
                svg,
                "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"3.5\" fill=\"{colour}\"/>"
            );
        }
        let at = TOP + 12.0 + 20.0 * number as f64;
        let (from, to) = (LEFT + WIDTH + 24.0, LEFT + WIDTH + 54.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{from}\" y1=\"{:.1}\" x2=\"{to}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\
             <text x=\"{:.1}\" y=\"{at:.1}\">{}</text>",
            at - 4.0,
            at - 4.0,
            to + 8.0,
            escaped(&growth.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// A logarithmic scale over whole decades.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        for value in values.map(|v| v.max(1e-3)) {
            least = least.min(value);
            most = most.max(value);
        }
        let low = least.min(most.max(1e-3)).log10().floor();
        Self {
            low,
            high: most.max(1e-3).log10().ceil().max(low + 1.0),
        }
    }

    /// Where a value lies, from zero to one.
    fn share(&self, value: f64) -> f64 {
        (value.max(1e-3).log10() - self.low) / (self.high - self.low)
    }

    fn decades(&self) -> impl Iterator<Item = (f64, String)> {
        (self.low as i32..=self.high as i32).map(|decade| {
            let value = 10_f64.powi(decade);
            (value, format!("{value}"))
        })
    }
}

fn opening(width: f64, height: f64, title: &str) -> String {
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\n\
         <title>{title}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"22\" font-size=\"15\">{title}</text>\n"
    )
}

fn legend(svg: &mut String, entries: &[(&str, &str)]) {
    for (number, (colour, text)) in entries.iter().enumerate() {
        let at = 10.0 + 180.0 * number as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{at}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"44\">{text}</text>",
            at + 18.0
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::case::OURS;

    #[test]
    fn a_bar_for_whatever_was_measured() {
        let mut times = Times::default();
        times.add("a <case>", OURS, Duration::from_millis(10));
        times.add("a <case>", "git", Duration::from_millis(40));
        times.absent("a <case>", "jj", "not installed");
        let plot = bars(&times, "x & y");
        assert!(plot.contains("a &lt;case&gt;") && plot.contains("x &amp; y"));
        assert_eq!(plot.matches("class=\"bar\"").count(), 2);
        assert!(plot.ends_with("</svg>\n") && !plot.contains("NaN"));
        // From 10 to 100 ms is the whole width.
        assert!(plot.contains(&format!("width=\"{:.1}\"", 520.0 * 4_f64.log10())));
    }

    #[test]
    fn a_line_through_every_point_with_its_name() {
        let growth = |name: &str| Growth {
            name: name.to_owned(),
            unit: "files",
            points: vec![(10.0, 1.0), (100.0, 10.0)],
        };
        let plot = lines(&[growth("one"), growth("two")], "title", "files");
        assert_eq!(plot.matches("<circle").count(), 4);
        assert_eq!(plot.matches("<polyline").count(), 2);
        assert!(plot.contains("points=\"80.0,430.0 560.0,50.0\""), "{plot}");
        assert!(plot.contains(">two</text>") && plot.contains(">median, ms</text>"));
    }

    #[test]
    fn nothing_measured_is_an_empty_picture() {
        for plot in [bars(&Times::default(), "t"), lines(&[], "t", "files")] {
            assert!(plot.ends_with("</svg>\n"));
            assert!(!plot.contains("NaN") && !plot.contains("inf"));
        }
    }
}
