//! Notices of SafeUDP that flows have given since an agent last asked for their status.

use evlbi_stream::control_socket::Status;
use evlbi_stream::safe::SafeNotice;

use crate::flow::{Flow, State};

/// Lists the notices that are in a flow's new status and not in its last one. An agent that finds a running flow does not know which of
/// its notices an earlier agent has recorded.
pub(super) fn news(flow: &Flow, status: &Status) -> Vec<SafeNotice> {
    let notices = |status: &Status| {
        let safe = status.sending.as_ref().and_then(|it| it.safe.as_ref());
        safe.map_or_else(Vec::new, |safe| safe.notices.clone())
    };
    let mut new = notices(status);
    match &flow.status {
        Some(before) => {
            let before = notices(before);
            new.retain(|notice| !before.contains(notice));
        }
        None if flow.state == State::Starting => {}
        None => new.clear(),
    }
    new
}

#[cfg(test)]
mod tests {
    use evlbi_net::safe::Evidence;
    use evlbi_stream::control_socket::{SafeSent, Sending};

    use super::*;

    /// Each notice of a flow becomes one event.
    #[test]
    fn notices_are_told_once() {
        let flow = serde_json::json!({"id": "a", "host": "ef", "command": "send", "options": {}, "revision": 1,
            "state": "starting", "started": 0.0});
        let mut flow: Flow = serde_json::from_value(flow).unwrap();
        let notice = |number: usize| SafeNotice {
            kind: "held".to_owned(),
            at_s: number as f64,
            kept: None,
            limit_bps: None,
            text: number.to_string(),
            evidence: Evidence::default(),
        };
        let status = |numbers: std::ops::Range<usize>| Status {
            sending: Some(Sending {
                safe: Some(SafeSent {
                    notices: numbers.map(notice).collect(),
                    ..SafeSent::default()
                }),
                ..Sending::default()
            }),
            ..Status::default()
        };
        let told = |flow: &Flow, status: &Status| -> Vec<String> {
            let news = news(flow, status).into_iter();
            news.map(|notice| notice.text).collect()
        };
        assert_eq!(told(&flow, &status(0..2)), ["0", "1"]);
        flow.status = Some(status(0..2));
        flow.state = State::Running;
        // The status has the latest notices only.
        assert_eq!(told(&flow, &status(1..4)), ["2", "3"]);
        assert!(told(&flow, &Status::default()).is_empty());
        flow.status = None;
        assert!(told(&flow, &status(1..4)).is_empty());
    }
}
