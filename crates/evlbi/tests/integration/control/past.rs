//! A month of history in the web UI of an agent: as a whole, and a part of it.

use evlbi_testkit::command;

use crate::control::browser::{self, python_with_a_browser};
use crate::control::support::{Agent, recv};
use crate::result::number;

/// An hour with a loss of a tenth is visible in the month, found by zooming in on it, and saved.
#[test]
fn days_are_searched_by_zooming() {
    let Some(python) = python_with_a_browser() else {
        return;
    };
    let agent = Agent::start("");
    agent.listen(&recv("ef", "null"));
    let filled = command(&python)
        .arg(browser::script("fill.py"))
        .arg(agent.room.folder().join("history.sqlite"))
        .output()
        .unwrap();
    assert!(
        filled.status.success(),
        "{}",
        String::from_utf8_lossy(&filled.stderr)
    );
    let seen = browser::seen(&python, "past.py", &agent);
    // The whole month is one line, with the sum of losses.
    assert_eq!(number(&seen["month"], "pieces"), 1, "{seen}");
    let words = |period: &str| seen[period]["words"].as_str().unwrap().to_owned();
    assert!(words("month").contains(" 12,000 in the network"), "{seen}");
    // The hour around the selected point: exact to a pixel of the picture before.
    for (period, least) in [("hour", 11_000), ("saved", 11_000)] {
        let [lost, expected] = ["lost", "expected"].map(|name| number(&seen[period], name));
        assert!(
            (least..=12_000).contains(&lost) && expected == 120_000,
            "{period}: {seen}"
        );
    }
    assert!(words("hour").contains("100.0 Mbit/s on average"), "{seen}");
    // Half an hour earlier half of it is visible.
    let lost = number(&seen["earlier"], "lost");
    assert!((5000..=7000).contains(&lost), "{seen}");
    let [from, to] = ["from", "to"].map(|end| seen["earlier"][end].as_f64().unwrap());
    assert_eq!(to - from, 3600.0, "{seen}");
    // The keyboard focus moves to the next button when this one is disabled.
    assert_eq!([&seen["now"], &seen["focus"]], ["live", "window"]);
}
