//! Numbers of bytes as people write and read them.

/// A number of bytes from text: digits, or digits with K, M, G or T (powers of 1024).
///
/// # Errors
/// What was expected, for the command line to say.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a number of bytes such as 1000, 64M or 2G");
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'K' | 'k')) => (text.get(..at), 10),
        Some((at, 'M' | 'm')) => (text.get(..at), 20),
        Some((at, 'G' | 'g')) => (text.get(..at), 30),
        Some((at, 'T' | 't')) => (text.get(..at), 40),
        _ => (Some(text), 0),
    };
    let number: u64 = digits.and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A number of bytes for people: `1.50 MiB`.
#[must_use]
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match UNITS.iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, name)) => {
            let (whole, rest) = (bytes >> shift, bytes & ((1 << shift) - 1));
            format!("{whole}.{:02} {name}", (u128::from(rest) * 100) >> shift)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes() {
        for (text, bytes) in [("1000", 1000), ("64M", 64 << 20), ("2g", 2 << 30), ("1536M", 1536 << 20), ("0", 0)] {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for bad in ["", "M", "-1", "1.5G", "1X", "99999999999T"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn texts() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (3 << 30, "3.00 GiB"), (u64::MAX, "16777215.99 TiB")]
        {
            assert_eq!(bytes_text(bytes), text);
        }
    }
}
