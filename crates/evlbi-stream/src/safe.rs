//! Notices of SafeUDP in results and in the status of a running flow.

use evlbi_net::safe::{Evidence, Kind, Notice};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Notice of SafeUDP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SafeNotice {
    /// Name of its kind.
    pub kind: String,
    /// Seconds since the start of the flow.
    pub at_s: f64,
    /// Fraction of the data that is sent from then on, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<f64>,
    /// Maximum rate without shedding, if it gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bps: Option<u64>,
    /// Its text.
    pub text: String,
    /// Measurements behind it.
    #[schema(value_type = Object)]
    pub evidence: Evidence,
}

impl SafeNotice {
    /// Makes it of a notice of the protocol.
    pub fn of(notice: &Notice) -> SafeNotice {
        let kept = match notice.kind {
            Kind::Shedding { to: step, .. } | Kind::Held { step } | Kind::Trial { step } => {
                Some(step.kept())
            }
            Kind::Stopped { .. } => Some(0.0),
            _ => None,
        };
        let limit_bps = match notice.kind {
            Kind::Congested { limit, .. } => Some(limit),
            _ => None,
        };
        SafeNotice {
            kind: notice.kind.name().to_owned(),
            at_s: notice.at.as_secs_f64(),
            kept,
            limit_bps,
            text: notice.to_string(),
            evidence: notice.evidence,
        }
    }
}
