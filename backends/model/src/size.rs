//! Sizes in words for people.

/// A size for people: `512 bytes`, `1.5 MiB`.
pub fn printable_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        let plural = if bytes == 1 { "" } else { "s" };
        return format!("{bytes} byte{plural}");
    }
    let mut tenths = u128::from(bytes) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10 * 1024 {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_down_to_a_tenth() {
        for (bytes, expected) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (104_857_600, "100.0 MiB"),
            (1024 * 1024 - 1, "1023.9 KiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(printable_size(bytes), expected);
        }
    }
}
