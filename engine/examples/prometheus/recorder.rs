//! A recorder of metrics in memory that renders them in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// The upper bounds of the buckets, in the unit of the histogram: from a millisecond to an hour.
const BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0,
];

/// Counts what it is told. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Recorded(Arc<Mutex<Families>>);

type Families = BTreeMap<String, Family>;

/// The metrics of one name.
#[derive(Default)]
struct Family {
    help: Option<String>,
    kind: &'static str,
    /// By their labels, as they are rendered.
    metrics: BTreeMap<String, Metric>,
}

#[derive(Clone)]
enum Metric {
    Number(Arc<Number>),
    Histogram(Arc<Buckets>),
}

/// A counter or a gauge: the bits of a float, or a count.
struct Number {
    value: AtomicU64,
    is_gauge: bool,
}

/// How many values were at most as large as each bound, and their sum.
#[derive(Default)]
struct Buckets(Mutex<Values>);

#[derive(Default)]
struct Values {
    counts: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl Recorded {
    /// Everything that was counted so far.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        for (name, family) in &*self.families() {
            let help = family.help.as_deref().unwrap_or_default();
            let _ = writeln!(text, "# HELP {name} {help}");
            let _ = writeln!(text, "# TYPE {name} {}", family.kind);
            for (labels, metric) in &family.metrics {
                metric.render(&mut text, name, labels);
            }
        }
        text
    }

    fn families(&self) -> std::sync::MutexGuard<'_, Families> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self, name: &KeyName, kind: &'static str, help: &SharedString) {
        let mut families = self.families();
        let family = families.entry(name.as_str().to_owned()).or_default();
        (family.kind, family.help) = (kind, Some(help.to_string()));
    }

    fn metric(&self, key: &Key, kind: &'static str, new: impl FnOnce() -> Metric) -> Metric {
        let labels: Vec<String> = key
            .labels()
            .map(|label| format!("{}={:?}", label.key(), label.value()))
            .collect();
        let mut families = self.families();
        let family = families.entry(key.name().to_owned()).or_default();
        family.kind = kind;
        let metric = family.metrics.entry(labels.join(","));
        metric.or_insert_with(new).clone()
    }

    fn number(&self, key: &Key, kind: &'static str, is_gauge: bool) -> Option<Arc<Number>> {
        let new = || {
            Metric::Number(Arc::new(Number {
                value: AtomicU64::new(0),
                is_gauge,
            }))
        };
        match self.metric(key, kind, new) {
            Metric::Number(number) => Some(number),
            Metric::Histogram(_) => None,
        }
    }
}

impl Metric {
    fn render(&self, text: &mut String, name: &str, labels: &str) {
        let braces = |labels: &str| match labels {
            "" => String::new(),
            labels => format!("{{{labels}}}"),
        };
        match self {
            Self::Number(number) => {
                let value = number.value.load(Ordering::Relaxed);
                let own = braces(labels);
                let _ = match number.is_gauge {
                    true => writeln!(text, "{name}{own} {}", f64::from_bits(value)),
                    false => writeln!(text, "{name}{own} {value}"),
                };
            }
            Self::Histogram(buckets) => {
                let values = buckets.0.lock().unwrap_or_else(PoisonError::into_inner);
                let separator = if labels.is_empty() { "" } else { "," };
                for (bound, count) in BUCKETS.iter().zip(values.counts) {
                    let own = braces(&format!("{labels}{separator}le=\"{bound}\""));
                    let _ = writeln!(text, "{name}_bucket{own} {count}");
                }
                let all = braces(&format!("{labels}{separator}le=\"+Inf\""));
                let _ = writeln!(text, "{name}_bucket{all} {}", values.count);
                let own = braces(labels);
                let _ = writeln!(text, "{name}_sum{own} {}", values.sum);
                let _ = writeln!(text, "{name}_count{own} {}", values.count);
            }
        }
    }
}

impl CounterFn for Number {
    fn increment(&self, value: u64) {
        self.value.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.value.fetch_max(value, Ordering::Relaxed);
    }
}

impl Number {
    fn change(&self, change: impl Fn(f64) -> f64) {
        let changed = |bits| Some(change(f64::from_bits(bits)).to_bits());
        let _ = self
            .value
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }
}

impl GaugeFn for Number {
    fn increment(&self, value: f64) {
        self.change(|now| now + value);
    }

    fn decrement(&self, value: f64) {
        self.change(|now| now - value);
    }

    fn set(&self, value: f64) {
        self.value.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (bound, count) in BUCKETS.iter().zip(&mut values.counts) {
            *count += u64::from(value <= *bound);
        }
        values.count += 1;
        values.sum += value;
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, "counter", &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, "gauge", &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, "histogram", &help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let number = self.number(key, "counter", false);
        number.map_or_else(Counter::noop, Counter::from_arc)
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let number = self.number(key, "gauge", true);
        number.map_or_else(Gauge::noop, Gauge::from_arc)
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let new = || Metric::Histogram(Arc::default());
        match self.metric(key, "histogram", new) {
            Metric::Histogram(buckets) => Histogram::from_arc(buckets),
            Metric::Number(_) => Histogram::noop(),
        }
    }
}
