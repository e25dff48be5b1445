//! Results that are printed or written as JSON, each with the name of its schema and the commands that print it. From these types `cargo xtask docs`
//! writes docs/schemas.
//!
//! Here belongs the result of a further command, as a row: `output::print` and `Results::show` take no other.

use evlbi_control::agent::Ready;
use evlbi_control::session::result::RunResult;
use evlbi_correlate::chunks::{ChunkPlan, PartDone};
use evlbi_correlate::cluster::ClusterPlan;
use evlbi_correlate::distribute::Distribution;
use evlbi_correlate::fringe::FringeResult;
use evlbi_correlate::loss_curve::LossCurve;
use evlbi_correlate::{CorrelateResult, Integration};
use evlbi_host::doctor::Examination;
use evlbi_path::report::State;
use evlbi_probe::analyse::Analysis;
use evlbi_probe::capacity::ProbeCapacity;
use evlbi_probe::fitness::ProbeFitness;
use evlbi_probe::latency::ProbeLatency;
use evlbi_probe::plan::{
    compare, link::LinkPlan, losses, multicast::MulticastPlan, safe::SafePlan, tcp::TcpPlan,
};
use evlbi_probe::report::{self, Report};
use evlbi_probe::tcp::{ProbeTcp, matrix};
use evlbi_probe::udp::{ProbeUdp, Sent};
use evlbi_stream::drop::DropReport;
use evlbi_stream::inspect;
use evlbi_stream::join::JoinReport;
use evlbi_stream::recv::RecvResult;
use evlbi_stream::send::SendResult;
use evlbi_stream::sky::SkyReport;
use evlbi_stream::split::SplitReport;

use crate::cli::Checked;
use crate::demo::DemoResult;
use crate::output::Output;

/// The table: name and version, commands, type.
macro_rules! outputs {
    ($($schema:literal $commands:expr, $type:ty;)*) => {
        $(impl Output for $type {})*

        #[cfg(test)]
        const PRINTED: &[Row] = &[$((
            $schema,
            &$commands,
            |generator| generator.into_root_schema_for::<$type>(),
        )),*];
    };
}

outputs! {
    "evlbi.agent/1" ["agent"], Ready;
    "evlbi.analyse/1" ["analyse"], Analysis;
    "evlbi.checked/1" ["run"], Checked;
    "evlbi.chunks/1" [], ChunkPlan;
    "evlbi.correlate/1" ["correlate", "merge", "distribute"], CorrelateResult;
    "evlbi.demo/1" ["demo"], DemoResult;
    "evlbi.distribute/1" ["distribute"], Distribution;
    "evlbi.doctor/1" ["doctor"], Examination;
    "evlbi.drop/1" ["drop"], DropReport;
    "evlbi.fringe/1" ["fringe"], FringeResult;
    "evlbi.inspect/1" ["inspect"], inspect::Report;
    "evlbi.join/1" ["join"], JoinReport;
    "evlbi.live/1" ["correlate"], Integration;
    "evlbi.loss-curve/1" ["loss-curve"], LossCurve;
    "evlbi.matrix/1" ["report"], report::matrix::Matrix;
    "evlbi.path/1" ["path run", "path show"], State;
    "evlbi.part/1" ["correlate"], PartDone;
    "evlbi.plan.compare/1" ["plan tcp"], compare::Simulated<compare::Row>;
    "evlbi.plan.distribute/1" ["plan distribute"], ClusterPlan;
    "evlbi.plan.link/1" ["plan link"], LinkPlan;
    "evlbi.plan.losses/1" ["plan tcp"], compare::Simulated<losses::Row>;
    "evlbi.plan.multicast/1" ["plan multicast"], MulticastPlan;
    "evlbi.plan.safe/1" ["plan safe", "send"], SafePlan;
    "evlbi.plan.tcp/1" ["plan tcp"], TcpPlan;
    "evlbi.probe/1" ["probe"], ProbeFitness;
    "evlbi.probe.capacity/1" ["probe capacity"], ProbeCapacity;
    "evlbi.probe.latency/1" ["probe latency"], ProbeLatency;
    "evlbi.probe.sent/1" ["probe udp"], Sent;
    "evlbi.probe.tcp/1" ["probe tcp"], ProbeTcp;
    "evlbi.probe.tcp.matrix/1" ["probe tcp"], matrix::Matrix;
    "evlbi.probe.udp/1" ["probe udp"], ProbeUdp;
    "evlbi.recv/1" ["recv"], RecvResult;
    "evlbi.report/1" ["report", "watch"], Report;
    "evlbi.run/1" ["run"], RunResult;
    "evlbi.send/1" ["send"], SendResult;
    "evlbi.sky/1" ["sky"], SkyReport;
    "evlbi.split/1" ["split"], SplitReport;
}

/// A schema: its name, the commands that print what it describes, and how it is made.
#[cfg(test)]
type Row = (
    &'static str,
    &'static [&'static str],
    fn(schemars::SchemaGenerator) -> schemars::Schema,
);

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::{Path, PathBuf};

    use clap::CommandFactory;
    use evlbi_correlate::Description;
    use evlbi_probe::PartsHead;
    use evlbi_wire::validity::Gaps;
    use schemars::generate::SchemaSettings;
    use serde_json::json;

    use super::*;
    use crate::cli::Cli;

    /// Documents that are only written to files.
    const WRITTEN: &[Row] = &[
        ("evlbi.gaps/1", &[], |generator| {
            generator.into_root_schema_for::<Gaps>()
        }),
        ("evlbi.probe.parts/1", &[], |generator| {
            generator.into_root_schema_for::<PartsHead>()
        }),
        ("evlbi.visibilities/1", &[], |generator| {
            generator.into_root_schema_for::<Description>()
        }),
    ];

    fn docs() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    /// Each schema's file, and its text.
    fn files() -> BTreeMap<String, String> {
        let all = PRINTED.iter().chain(WRITTEN);
        all.map(|(name, _, make)| {
            let settings = SchemaSettings::draft2020_12().for_serialize();
            let mut schema = make(settings.into_generator());
            schema.insert("title".to_owned(), json!(name));
            let field = schema
                .pointer_mut("/properties/schema")
                .expect("the field `schema`");
            field["const"] = json!(name);
            let text = serde_json::to_string_pretty(&schema).expect("a schema");
            (format!("{}.json", name.replace('/', "-")), text + "\n")
        })
        .collect()
    }

    /// `cargo xtask docs` has it write them.
    #[test]
    fn the_schemas_are_those_of_the_types() {
        let folder = docs().join("schemas");
        let files = files();
        let is_writing = std::env::var_os("EVLBI_WRITE_DOCS").is_some();
        if is_writing {
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).expect("a directory");
            for (name, text) in &files {
                fs::write(folder.join(name), text).expect("a schema");
            }
        }
        let found = fs::read_dir(&folder).into_iter().flatten().flatten();
        let found = found.map(|entry| {
            let name = entry.file_name().into_string().expect("a name");
            (name, fs::read_to_string(entry.path()).expect("a schema"))
        });
        let found: BTreeMap<String, String> = found.collect();
        let names = files
            .keys()
            .chain(found.keys())
            .collect::<BTreeSet<_>>()
            .into_iter();
        let old: Vec<&String> = names
            .filter(|name| files.get(*name) != found.get(*name))
            .collect();
        assert!(
            old.is_empty(),
            "`cargo xtask docs` writes these again: {old:?}"
        );
    }

    #[test]
    fn every_command_with_json_has_a_schema() {
        fn with_json(command: &clap::Command, name: &str, all: &mut BTreeSet<String>) {
            if command
                .get_arguments()
                .any(|it| it.get_long() == Some("json"))
            {
                all.insert(name.to_owned());
            }
            for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
                let name = format!("{name} {}", below.get_name());
                with_json(below, name.trim_start(), all);
            }
        }
        let mut all = BTreeSet::new();
        with_json(&Cli::command(), "", &mut all);
        let commands = PRINTED.iter().flat_map(|(_, commands, _)| commands.iter());
        let described: BTreeSet<String> = commands.map(|it| (*it).to_owned()).collect();
        assert_eq!(all, described);
    }

    #[test]
    fn every_schema_is_in_the_page_of_results() {
        let page = fs::read_to_string(docs().join("src/results.md")).expect("a page");
        let all = PRINTED.iter().chain(WRITTEN).map(|(name, ..)| *name);
        let missing: Vec<&str> = all
            .filter(|name| !page.contains(&format!("| `{name}` |")))
            .collect();
        assert!(missing.is_empty(), "docs/src/results.md lacks {missing:?}");
    }
}
