//! The web page of a report, in one file.

use std::fmt::Write;

use super::host::Host;
use super::record::{Aim, Ending, Fact, Figure, Table, Verdict};
use super::{Played, Tally};

const STYLE: &str = include_str!("page.css");

/// Returns the whole page.
pub fn page(machine: &str, begun: &str, scenes: &[Played]) -> String {
    let tally = Tally::of(scenes);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>evlbi live report</title><style>{STYLE}</style></head><body><main>\n\
         <header><h1>evlbi live report</h1><p class=\"about\">{} · {}</p></header>\n",
        escape(begun),
        escape(machine)
    );
    page += &tiles(&tally);
    page += &contents(scenes);
    for scene in scenes {
        page += &section(scene);
    }
    page += "<footer>A figure is met within the tolerance that its scene gives. One that misses it is not judged if the host \
             stood still for longer than the scene allows, or lent more than 1 % of its processors' time to other machines. \
             Facts hold on any host; only they decide the exit status.</footer></main></body></html>\n";
    page
}

fn tiles(tally: &Tally) -> String {
    let tile = |class: &str, number: String, words: &str| {
        format!("<div class=\"tile {class}\"><b>{number}</b><span>{words}</span></div>")
    };
    let facts = tally.facts_hold + tally.facts_broken;
    let judged = tally.met + tally.missed;
    let mut tiles = String::from("<div class=\"tiles\">");
    tiles += &tile(
        if tally.facts_broken == 0 {
            "good"
        } else {
            "bad"
        },
        format!("{}<small>/{facts}</small>", tally.facts_hold),
        "facts hold",
    );
    tiles += &tile(
        if tally.missed == 0 { "good" } else { "bad" },
        format!("{}<small>/{judged}</small>", tally.met),
        "figures met",
    );
    tiles += &tile(
        if tally.not_judged == 0 { "" } else { "unsure" },
        tally.not_judged.to_string(),
        "not judged: the host stood still",
    );
    tiles += &tile(
        if tally.failed == 0 { "" } else { "bad" },
        format!("{}<small>/{}</small>", tally.played, tally.scenes),
        "scenes played",
    );
    tiles += "</div>\n";
    tiles
}

/// Returns one row per scene with a dot for each of its figures.
fn contents(scenes: &[Played]) -> String {
    let mut rows = String::from(
        "<table class=\"contents\"><thead><tr><th>Scene</th><th>Facts</th><th>Figures</th><th class=\"n\">Longest stall</th>\
         <th class=\"n\">Stolen</th><th class=\"n\">Time</th></tr></thead><tbody>",
    );
    for scene in scenes {
        let dots: String = scene
            .record
            .figures
            .iter()
            .filter(|figure| figure.verdict != Verdict::Shown)
            .map(|figure| {
                format!(
                    "<i class=\"dot {}\" title=\"{}: {}\"></i>",
                    class(figure.verdict),
                    escape(&figure.name),
                    figure.verdict.words().to_lowercase()
                )
            })
            .collect();
        let broken = scene.record.facts.iter().filter(|fact| !fact.holds).count();
        let facts = match (scene.record.facts.len(), broken) {
            (0, _) => String::new(),
            (all, 0) => format!("<span class=\"met\">{all} hold</span>"),
            (all, broken) => format!("<span class=\"missed\">{broken} of {all} broken</span>"),
        };
        let ending = match &scene.ending {
            Ending::Played => dots,
            Ending::LeftOut(lacks) => format!("<em>left out: {}</em>", escape(&lacks.join(", "))),
            Ending::Failed(_) => {
                format!("{dots} <span class=\"missed\">could not be played</span>")
            }
        };
        let _ = write!(
            rows,
            "<tr><td><a href=\"#{0}\">{0}</a></td><td>{facts}</td><td class=\"dots\">{ending}</td><td class=\"n\">{1:.0} ms</td>\
             <td class=\"n\">{2:.1} %</td><td class=\"n\">{3:.0} s</td></tr>",
            scene.name,
            scene.host.longest() * 1e3,
            scene.host.stolen * 100.0,
            scene.host.seconds
        );
    }
    rows + "</tbody></table>\n"
}

fn section(scene: &Played) -> String {
    let mut section = format!(
        "<section id=\"{0}\"><h2>{0}</h2><p class=\"shows\">{1}</p>",
        scene.name,
        words(scene.shows)
    );
    match &scene.ending {
        Ending::Played => {}
        Ending::LeftOut(lacks) => {
            let _ = write!(
                section,
                "<p class=\"ending\">Left out: this machine lacks {}.</p>",
                escape(&lacks.join(", "))
            );
        }
        Ending::Failed(why) => {
            let _ = write!(
                section,
                "<p class=\"ending bad\">It could not be played: {}</p>",
                escape(why)
            );
        }
    }
    if !scene.record.figures.is_empty() {
        section += "<table class=\"figures\"><thead><tr><th>Figure</th><th class=\"n\">Found</th><th></th><th>Expected</th><th></th></tr></thead><tbody>";
        for figure in &scene.record.figures {
            section += &row(figure);
        }
        section += "</tbody></table>";
    }
    if !scene.record.facts.is_empty() {
        let is_broken = scene.record.facts.iter().any(|fact| !fact.holds);
        let _ = write!(
            section,
            "<details{}><summary>Facts: {}</summary><ul>{}</ul></details>",
            if is_broken { " open" } else { "" },
            match scene.record.facts.iter().filter(|fact| !fact.holds).count() {
                0 => format!("all {} hold", scene.record.facts.len()),
                broken => format!("{broken} of {} broken", scene.record.facts.len()),
            },
            scene.record.facts.iter().map(fact).collect::<String>()
        );
    }
    section.extend(scene.record.tables.iter().map(table));
    if !scene.record.pictures.is_empty() {
        section += "<div class=\"pictures\">";
        for picture in &scene.record.pictures {
            let _ = write!(
                section,
                "<figure><figcaption>{}</figcaption>{}{}</figure>",
                escape(&picture.title),
                picture.legend(),
                picture.svg()
            );
        }
        section += "</div>";
    }
    if !matches!(scene.ending, Ending::LeftOut(_)) {
        section += &ribbon(&scene.host);
        if !scene.excuses.is_empty() {
            let _ = write!(
                section,
                "<p class=\"excuses\">Disturbed: {}.</p>",
                escape(&scene.excuses.join("; "))
            );
        }
    }
    section + "</section>\n"
}

fn table(table: &Table) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| -> String {
        cells
            .map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)))
            .collect()
    };
    let rows = table.rows.iter().map(|row| {
        let row = cells("td", &mut row.iter().map(String::as_str));
        format!("<tr>{row}</tr>")
    });
    format!(
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>",
        cells("th", &mut table.columns.iter().copied()),
        rows.collect::<String>()
    )
}

fn row(figure: &Figure) -> String {
    let mark = match figure.verdict {
        Verdict::Met => "✓ met",
        Verdict::Missed => "✗ missed",
        Verdict::NotJudged => "~ not judged",
        Verdict::Shown => "",
    };
    format!(
        "<tr><td>{}</td><td class=\"n found\">{}</td><td class=\"bullet\">{}</td><td class=\"expected\">{}</td>\
         <td class=\"{}\">{mark}</td></tr>",
        escape(&figure.name),
        escape(&figure.found()),
        bullet(figure),
        escape(&figure.expected()),
        class(figure.verdict)
    )
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "missed",
        Verdict::NotJudged => "unsure",
        Verdict::Shown => "shown",
    }
}

/// Draws a figure next to its bounds: a band and a dot.
fn bullet(figure: &Figure) -> String {
    const WIDTH: f64 = 140.0;
    if figure.is_said() || !figure.found.is_finite() {
        return String::new();
    }
    let (low, high) = figure.aim.bounds();
    let (from, to) = match figure.aim {
        Aim::Shown | Aim::AtMost(0.0) => return String::new(),
        Aim::Near { .. } | Aim::Within(..) if high > low => {
            (low - (high - low), high + (high - low))
        }
        Aim::Near { .. } | Aim::Within(..) => {
            let width = low.abs().max(1.0);
            (low - width, high + width)
        }
        Aim::AtMost(high) => (0.0, 1.6 * high),
        Aim::AtLeast(low) if low > 0.0 => (0.0, 2.0 * low.max(0.6 * figure.found)),
        Aim::AtLeast(low) => (low - 1.0, low + 1.0 + figure.found.abs()),
    };
    let place = |value: f64| 6.0 + (WIDTH - 12.0) * ((value - from) / (to - from)).clamp(0.0, 1.0);
    let (left, right) = (place(low.max(from)), place(high.min(to)));
    let expected = match figure.aim {
        Aim::Near { expected, .. } => {
            format!(
                "<path class=\"tick-at\" d=\"M{:.1} 3v12\"/>",
                place(expected)
            )
        }
        _ => String::new(),
    };
    format!(
        "<svg viewBox=\"0 0 {WIDTH} 18\" width=\"{WIDTH}\" height=\"18\" aria-hidden=\"true\"><path class=\"rail\" d=\"M6 9H{}\"/>\
         <rect class=\"band\" x=\"{left:.1}\" y=\"5\" width=\"{:.1}\" height=\"8\" rx=\"2\"/>{expected}\
         <circle class=\"at {}\" cx=\"{:.1}\" cy=\"9\" r=\"4.5\"/></svg>",
        WIDTH - 6.0,
        (right - left).max(2.0),
        class(figure.verdict),
        place(figure.found)
    )
}

fn fact(fact: &Fact) -> String {
    let (class, mark) = if fact.holds {
        ("met", "✓")
    } else {
        ("missed", "✗")
    };
    let detail = if fact.detail.is_empty() {
        String::new()
    } else {
        format!(" <small>{}</small>", escape(&fact.detail))
    };
    format!(
        "<li><span class=\"{class}\">{mark}</span> {}{detail}</li>",
        escape(&fact.what)
    )
}

/// Draws the host's stalls over the time of a scene.
fn ribbon(host: &Host) -> String {
    const WIDTH: f64 = 1000.0;
    let place = |at: f64| WIDTH * (at / host.seconds.max(1e-3)).clamp(0.0, 1.0);
    let stalls: String = host
        .stalls
        .iter()
        .map(|(at, length)| {
            let (from, to) = (place(at - length), place(*at));
            // Logarithmic, from 5 ms to half a second.
            let height = (6.0 + 9.0 * (length / 0.005).log10()).clamp(6.0, 24.0);
            format!(
                "<rect class=\"stall\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{:.0} ms at {at:.1} s</title></rect>",
                26.0 - height,
                (to - from).max(1.5),
                length * 1e3
            )
        })
        .collect();
    format!(
        "<div class=\"ribbon\"><span>Host: {}</span><svg viewBox=\"0 0 {WIDTH} 28\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <path class=\"rail\" d=\"M0 26H{WIDTH}\"/>{stalls}</svg></div>",
        escape(&host.words())
    )
}

/// Formats a sentence with commands between backticks.
fn words(text: &str) -> String {
    let text = escape(text);
    let parts = text.split('`').enumerate();
    parts
        .map(|(place, part)| match place % 2 {
            0 => part.to_owned(),
            _ => format!("<code>{part}</code>"),
        })
        .collect()
}

/// Escapes text for a web page.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
