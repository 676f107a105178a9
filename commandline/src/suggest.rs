//! What somebody who mistyped a name may have meant.

/// Less alike than this is no suggestion: 0 is nothing in common, 1 is the same.
const LEAST_ALIKE: f64 = 0.75;

/// The candidate that is most like `name`, if one is like it at all.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.into_iter().map(|candidate| (strsim::jaro(name, candidate), candidate));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(alike, _)| *alike >= LEAST_ALIKE).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_seen_and_strangers_are_not() {
        let names = ["debian:stable", "python:3.12", "team/tools:latest"];
        assert_eq!(nearest("debain:stable", names), Some("debian:stable"));
        assert_eq!(nearest("python:3.11", names), Some("python:3.12"));
        assert_eq!(nearest("tools:latest", names), Some("team/tools:latest"));
        assert_eq!(nearest("xyzzy:1", names), None);
        assert_eq!(nearest("debian:stable", []), None);
    }
}
