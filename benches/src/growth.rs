//! How cost grows: with files, with changes, with bytes.

/// Measured points of one case, and what they are points of.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// What was measured, of which subject.
    pub name: String,
    /// What grows, in the plural: "thousand files".
    pub unit: &'static str,
    /// How much there was of it, and the median in milliseconds.
    pub points: Vec<(f64, f64)>,
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

impl Growth {
    /// Adds a point to the growth of that name, which may be new.
    pub fn add(all: &mut Vec<Self>, name: &str, unit: &'static str, point: (f64, f64)) {
        match all.iter_mut().find(|g| g.name == name && g.unit == unit) {
            Some(growth) => growth.points.push(point),
            None => all.push(Self {
                name: name.to_owned(),
                unit,
                points: vec![point],
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_through_points_on_it() {
        let (start, slope) = fit(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]).unwrap();
        assert!((start - 3.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9);
        assert_eq!(fit(&[(1.0, 5.0)]), None);
        assert_eq!(fit(&[(1.0, 5.0), (1.0, 6.0)]), None);
    }

    #[test]
    fn points_gather_by_name_and_unit() {
        let mut all = Vec::new();
        for (name, unit) in [("a", "MiB"), ("b", "MiB"), ("a", "MiB"), ("a", "changes")] {
            Growth::add(&mut all, name, unit, (1.0, 2.0));
        }
        let points: Vec<usize> = all.iter().map(|g| g.points.len()).collect();
        assert_eq!(points, [2, 1, 1]);
    }
}
