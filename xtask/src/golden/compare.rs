//! Compares the outcomes of two builds: JSON by its fields, text by its lines, numbers with a fraction within a tolerance.

use serde_json::Value;

use super::normal::{EACH, LINES, NULL};

/// Maximum relative difference of equal numbers with a fraction.
const TOLERANCE: f64 = 1e-6;

/// Comparison of a build's outcome with the base's.
#[derive(Default)]
pub struct Comparison {
    /// Fields, lines of help and files that the base does not have.
    pub additions: Vec<String>,
    /// Changed or missing parts.
    pub differences: Vec<String>,
}

impl Comparison {
    pub fn verdict(&self) -> &'static str {
        match (self.differences.is_empty(), self.additions.is_empty()) {
            (false, _) => "differs",
            (true, false) => "additions",
            (true, true) => "same",
        }
    }

    /// Compares the values `at` a place.
    pub fn compare(&mut self, at: &str, base: &Value, new: &Value) {
        match (base, new) {
            (Value::Object(base), Value::Object(new)) => {
                if let (Some(base), Some(new)) = (base.get(LINES), new.get(LINES)) {
                    return self.lines(at, base, new);
                }
                for (key, value) in base {
                    let at = below(at, key);
                    match new.get(key) {
                        Some(new) => self.compare(&at, value, new),
                        None => self.differences.push(format!("{at}: missing")),
                    }
                }
                let added = new.keys().filter(|key| !base.contains_key(*key));
                self.additions.extend(added.map(|key| below(at, key)));
            }
            (Value::Array(base), Value::Array(new)) => {
                for (index, (base, new)) in base.iter().zip(new).enumerate() {
                    self.compare(&format!("{at}[{index}]"), base, new);
                }
                if base.len() != new.len() {
                    let first = |of: &[Value], than: usize| {
                        of.get(than)
                            .map_or(String::new(), |value| format!(", then {value}"))
                    };
                    let (more, fewer) = (first(new, base.len()), first(base, new.len()));
                    self.differences.push(format!(
                        "{at}: {} entries{fewer}, now {}{more}",
                        base.len(),
                        new.len()
                    ));
                }
            }
            (Value::String(base), Value::String(new)) if is_same_text(base, new) => {}
            (Value::Number(base), Value::Number(new))
                if is_same(&base.to_string(), &new.to_string()) => {}
            // A masked value: sometimes there is none.
            (Value::String(null), _) | (_, Value::String(null)) if null == NULL => {}
            (base, new) if base == new => {}
            (base, new) => self.differences.push(format!("{at}: {base}, now {new}")),
        }
    }

    /// Compares lines of help, which may be added and reordered.
    fn lines(&mut self, at: &str, base: &Value, new: &Value) {
        let list = |lines: &Value| lines.as_array().cloned().unwrap_or_default();
        let (base, mut new) = (list(base), list(new));
        let mut next = 0;
        for line in &base {
            let Some(place) = new.iter().position(|new| new == line) else {
                self.differences.push(format!("{at}: missing {line}"));
                continue;
            };
            if place < next {
                self.additions.push(format!("{at}: moved {line}"));
            }
            new.remove(place);
            next = place;
        }
        let added = new.iter();
        self.additions
            .extend(added.map(|line| format!("{at}: {line}")));
    }
}

fn below(at: &str, key: &str) -> String {
    match (at, key) {
        (at, EACH) => format!("{at}[]"),
        ("", key) => key.to_owned(),
        (at, key) => format!("{at}.{key}"),
    }
}

/// Compares texts; numbers in them by value.
fn is_same_text(base: &str, new: &str) -> bool {
    if base == new {
        return true;
    }
    let (base, new) = (pieces(base), pieces(new));
    base.len() == new.len()
        && base.iter().zip(&new).all(|(base, new)| match (base, new) {
            (Piece::Number(base), Piece::Number(new)) => is_same(base, new),
            (base, new) => base == new,
        })
}

/// Compares numbers: counts exactly, others within the tolerance.
fn is_same(base: &str, new: &str) -> bool {
    let value = |text: &str| text.replace(',', "").parse::<f64>().ok();
    let is_count = |text: &str| !text.contains(['.', 'e', 'E']);
    match (value(base), value(new)) {
        _ if base == new => true,
        _ if is_count(base) && is_count(new) => false,
        (Some(base), Some(new)) => (base - new).abs() <= TOLERANCE * base.abs().max(new.abs()),
        _ => false,
    }
}

/// A part of a text.
#[derive(Debug, PartialEq)]
pub enum Piece<'a> {
    /// E.g. 16,640 or 1.5e-7, without a sign.
    Number(&'a str),
    Text(&'a str),
}

/// Returns a text's numbers, and the text between them.
pub fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let begin = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        if begin > 0 {
            pieces.push(Piece::Text(&rest[..begin]));
        }
        rest = &rest[begin..];
        let length = number(rest.as_bytes());
        if length > 0 {
            pieces.push(Piece::Number(&rest[..length]));
        }
        rest = &rest[length..];
    }
    pieces
}

/// Returns the length in bytes of the number at the start of a text.
fn number(text: &[u8]) -> usize {
    let digits = |from: usize| {
        text[from.min(text.len())..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count()
    };
    let mut end = digits(0);
    while end > 0 && text.get(end) == Some(&b',') && digits(end + 1) == 3 {
        end += 4;
    }
    if text.get(end) == Some(&b'.') && digits(end + 1) > 0 {
        end += 1 + digits(end + 1);
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'-' | b'+')));
        let exponent = digits(end + 1 + sign);
        end += if exponent > 0 { 1 + sign + exponent } else { 0 };
    }
    end
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::golden::cases::Pace;
    use crate::golden::normal;

    fn compared(base: &Value, new: &Value) -> Comparison {
        let mut comparison = Comparison::default();
        comparison.compare("", base, new);
        comparison
    }

    fn verdict(base: &Value, new: &Value) -> &'static str {
        compared(base, new).verdict()
    }

    #[test]
    fn numbers_with_a_fraction_are_compared_by_value_and_counts_exactly() {
        let base = json!({"snr": 107.683_236, "sent": 10_000_000});
        assert_eq!(
            verdict(&base, &json!({"snr": 107.683_240, "sent": 10_000_000})),
            "same"
        );
        assert_eq!(
            verdict(&base, &json!({"snr": 107.683_236, "sent": 10_000_001})),
            "differs"
        );
        assert_eq!(
            verdict(&base, &json!({"snr": 107.684, "sent": 10_000_000})),
            "differs"
        );
        assert_eq!(verdict(&json!(0.0), &json!(1e-12)), "differs");
        assert_eq!(
            verdict(
                &json!("at 1.5e-7 s, -2.0"),
                &json!("at 1.5000000001e-7 s, -2.0")
            ),
            "same"
        );
        assert_eq!(
            verdict(&json!("at 1.5e-7 s, -2.0"), &json!("at 1.5e-7 s, 2.0")),
            "differs"
        );
        assert_eq!(
            verdict(&json!("16,640 bytes"), &json!("16,641 bytes")),
            "differs"
        );
        assert_eq!(
            verdict(&json!("16,640 bytes"), &json!("16,640 octets")),
            "differs"
        );
    }

    #[test]
    fn a_new_field_is_an_addition_and_a_missing_one_a_difference() {
        let base = json!({"result": {"sent": 1}, "list": [1, 2]});
        let added = json!({"result": {"sent": 1, "nonce": 0}, "list": [1, 2], "file": "x"});
        let comparison = compared(&base, &added);
        assert_eq!(comparison.verdict(), "additions");
        assert_eq!(comparison.additions, ["result.nonce", "file"]);
        let comparison = compared(&added, &base);
        assert_eq!(
            comparison.differences,
            ["file: missing", "result.nonce: missing"]
        );
        assert_eq!(
            verdict(&base, &json!({"result": {"sent": 1}, "list": [1, 2, 3]})),
            "differs"
        );
        assert_eq!(
            verdict(&base, &json!({"result": {"sent": null}, "list": [1, 2]})),
            "differs"
        );
    }

    #[test]
    fn help_may_get_lines_and_lose_none() {
        let help = |text: &str| normal::help(text);
        let base = help(
            "Options:\n  --to <TO>    Where to: udp://HOST:PORT\n               or tcp\n  -h, --help   Print help\n",
        );
        let wider = help(
            "Options:\n  --to <TO>          Where to: udp://HOST:PORT or tcp\n  --new <A>          More\n  -h, --help         Print help\n",
        );
        assert_eq!(compared(&base, &wider).additions, [": \"--new <A> More\""]);
        assert_eq!(verdict(&base, &wider), "additions");
        assert_eq!(verdict(&wider, &base), "differs");
        assert_eq!(verdict(&base, &base), "same");
        let moved = help(
            "Options:\n  -h, --help   Print help\n  --to <TO>    Where to: udp://HOST:PORT or tcp\n",
        );
        assert_eq!(
            compared(&base, &moved).additions,
            [": moved \"-h, --help Print help\""]
        );
    }

    #[test]
    fn a_masked_value_has_a_type() {
        let result = |seconds: Value| {
            normal::json(
                json!({"schema": "evlbi.recv/1", "seconds": seconds}),
                Pace::None,
            )
        };
        let base = result(json!(1.5));
        assert_eq!(verdict(&base, &result(json!(2.5))), "same");
        assert_eq!(verdict(&base, &result(Value::Null)), "same");
        assert_eq!(verdict(&base, &result(json!("2.5 s"))), "differs");
        assert_eq!(
            verdict(&base, &json!({"schema": "evlbi.recv/1"})),
            "differs"
        );
    }

    #[test]
    fn numbers_are_found_in_text() {
        use Piece::{Number, Text};
        assert_eq!(
            pieces("a 1,234.5 b1e-6,7."),
            [
                Text("a "),
                Number("1,234.5"),
                Text(" b"),
                Number("1e-6"),
                Text(","),
                Number("7"),
                Text(".")
            ]
        );
    }
}
