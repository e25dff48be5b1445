//! The defaults of the command line are those of the engines' options.

use clap::Parser;
use evlbi_correlate::CorrelateOptions;
use evlbi_correlate::loss_curve::LossCurveOptions;
use evlbi_stream::drop::DropOptions;
use evlbi_stream::join::JoinOptions;
use evlbi_stream::recv::RecvOptions;
use evlbi_stream::selection::Selection;
use evlbi_stream::send::SendOptions;
use evlbi_stream::split::SplitOptions;

use super::{Cli, Command};
use crate::demo::DemoOptions;

fn parse(line: &str) -> Command {
    let words = ["evlbi"].into_iter().chain(line.split(' '));
    Cli::try_parse_from(words).unwrap().command
}

#[test]
fn defaults_of_the_command_line_are_those_of_the_engines() {
    let Command::Recv(args) = parse("recv udp://0.0.0.0:0 --to null") else {
        panic!("another command");
    };
    let parsed = RecvOptions::from(args);
    assert_eq!(
        format!("{parsed:?}"),
        format!("{:?}", RecvOptions::default())
    );
    let Command::Send(args) = parse("send FILE --to udp://[::1]:1") else {
        panic!("another command");
    };
    let parsed = SendOptions::from(args);
    let default = SendOptions {
        source: "FILE".into(),
        to: parsed.to.clone(),
        ..SendOptions::default()
    };
    assert_eq!(format!("{parsed:?}"), format!("{default:?}"));
    let Command::Demo(args) = parse("demo --json") else {
        panic!("another command");
    };
    let parsed = DemoOptions::from(args);
    assert_eq!(
        format!("{parsed:?}"),
        format!("{:?}", DemoOptions::default())
    );
    let Command::Drop(args) = parse("drop IN OUT --shed none") else {
        panic!("another command");
    };
    let parsed = DropOptions::from(args);
    let default = DropOptions {
        input: "IN".into(),
        output: "OUT".into(),
        ..DropOptions::default()
    };
    assert_eq!(format!("{parsed:?}"), format!("{default:?}"));
    let Command::Split(args) = parse("split IN --to OUT") else {
        panic!("another command");
    };
    let parsed = SplitOptions::from(args);
    let default = SplitOptions {
        input: "IN".into(),
        to: "OUT".into(),
        ..SplitOptions::default()
    };
    assert_eq!(format!("{parsed:?}"), format!("{default:?}"));
    let Command::Join(args) = parse("join A B --to OUT") else {
        panic!("another command");
    };
    let parsed = JoinOptions::from(args);
    let default = JoinOptions {
        inputs: ["A", "B"]
            .map(|path| (path.into(), Selection::default()))
            .to_vec(),
        output: "OUT".into(),
        ..JoinOptions::default()
    };
    assert_eq!(format!("{parsed:?}"), format!("{default:?}"));
    let Command::Correlate(args) = parse("correlate A B") else {
        panic!("another command");
    };
    let parsed = CorrelateOptions::from(args.options);
    assert_eq!(
        format!("{parsed:?}"),
        format!("{:?}", CorrelateOptions::default())
    );
    let Command::LossCurve(args) = parse("loss-curve A B") else {
        panic!("another command");
    };
    let parsed = LossCurveOptions::from(args);
    let default = LossCurveOptions {
        files: ["A", "B"].map(String::from).to_vec(),
        ..LossCurveOptions::default()
    };
    assert_eq!(format!("{parsed:?}"), format!("{default:?}"));
}
