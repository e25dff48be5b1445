//! Flows of an agent under SafeUDP: what is allowed, what stays secret, and what others see while it runs.

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};

use crate::control::browser::{self, python_with_a_browser};
use crate::control::session::{STATIONS, Site};
use crate::control::support::{Agent, free_ports, has_ended, processes_in, recv, send};
use crate::result::number;

/// Returns a flow with further options.
fn with(mut flow: Value, more: &Value) -> Value {
    let options = flow.as_object_mut().unwrap();
    options.extend(more.as_object().unwrap().clone());
    flow
}

/// Both ends show their state while they run, and their key to nobody.
#[test]
fn both_ends_show_their_state_and_hide_their_key() {
    let agent = Agent::start("name = \"ef\"\n");
    let digits = "5af3".repeat(16);
    let key = format!("key:{digits}");
    let [at] = free_ports::<1>();
    let from = format!("udp://{at}");
    let safe = json!({"from": from, "safe": true, "key-file": key});
    agent.listen(&with(recv("to", "null"), &safe));
    let safe = json!({"safe": "reserved", "least": "1/2", "grace": "1s", "weight": 2, "rearm": true,
        "key-file": key, "duration": "1s"});
    agent.begin(&with(send("from", &from, "8M"), &safe));
    agent.wait("from", has_ended);
    let sent = agent.flow("from");
    assert_eq!(sent["end"]["outcome"], "finished", "{sent}");
    let safe = &sent["status"]["sending"]["safe"];
    assert_eq!(
        (&safe["mode"], &safe["kept"]),
        (&json!("reserved"), &json!(1.0))
    );
    assert!(safe["rtt_s"].as_f64().unwrap() > 0.0, "{safe}");
    agent.finish("to");
    let received = agent.flow("to")["status"]["receiving"][0].clone();
    let heard = &received["safe"];
    assert_eq!(
        (&heard["state"], &heard["sender_shed"]),
        (&json!("ended"), &json!(0))
    );
    let results = ["from", "to"].map(|id| agent.get(&format!("/api/v1/flows/{id}/result")));
    let [here, there] = results.each_ref().map(|result| &result["safe"]["accounts"]);
    assert!(here.is_object(), "{here}");
    assert_eq!(here, there);

    let request = agent.bare(Method::GET, "/metrics");
    let request = request.bearer_auth(agent.token("watch"));
    let metrics = agent.send(request).body.as_str().unwrap().to_owned();
    for line in [
        "evlbi_safe_kept_ratio{host=\"ef\",flow=\"from\"} 1.0",
        "evlbi_safe_sender_kept_ratio{host=\"ef\",flow=\"to\"} 1.0",
        "evlbi_safe_rejected_messages_total{host=\"ef\",flow=\"to\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let all = format!(
        "{}{:?}{metrics}",
        agent.get("/api/v1/flows"),
        agent.events()
    );
    assert!(!all.contains(&digits), "{all}");
    for process in processes_in(agent.room.folder()) {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap();
        assert!(!String::from_utf8_lossy(&line).contains(&digits));
    }
    let kept = agent.room.folder().join("flows/from/key");
    assert_eq!(fs::read(&kept).unwrap(), [0x5a, 0xf3].repeat(16));
    agent.ask(Method::DELETE, "/api/v1/flows/from", &Value::Null);
    assert!(!kept.exists());
}

/// A notice is an event of the agent, a counter of its metrics, and on its page.
#[test]
fn notices_reach_events_metrics_and_page() {
    let Some(python) = python_with_a_browser() else {
        return;
    };
    let agent = Agent::start("name = \"ef\"\n");
    let [at] = free_ports::<1>();
    let from = format!("udp://{at}");
    agent.listen(&with(
        recv("to", "null"),
        &json!({"from": from, "safe": true}),
    ));
    agent.begin(&with(
        send("from", &from, "8M"),
        &json!({"safe": "reserved"}),
    ));
    let safe = |flow: &Value| flow["status"]["sending"]["safe"].clone();
    agent.wait("from", |flow| safe(flow)["rtt_s"].as_f64() > Some(0.0));
    agent.finish("to");
    // Nobody listens any more.
    let flow = agent.wait("from", |flow| safe(flow)["notices"][0].is_object());
    let text = safe(&flow)["notices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(safe(&flow)["notices"][0]["kind"], "refused");
    let events = agent.events();
    assert!(
        events.iter().any(|event| event.contains(&text)),
        "{events:?}"
    );
    let request = agent.bare(Method::GET, "/metrics");
    let request = request.bearer_auth(agent.token("watch"));
    let metrics = agent.send(request).body.as_str().unwrap().to_owned();
    let counter = "evlbi_safe_notices_total{host=\"ef\",flow=\"from\"} ";
    assert!(metrics.contains(counter), "{metrics}");
    assert!(!metrics.contains(&format!("{counter}0")), "{metrics}");
    let seen = browser::seen(&python, "safe.py", &agent);
    let all = |name: &str| seen[name].as_array().unwrap().clone();
    for chart in ["Kept by SafeUDP", "State of SafeUDP"] {
        assert!(all("charts").contains(&chart.into()), "{seen}");
    }
    assert!(
        all("notices")
            .iter()
            .any(|it| it.as_str().unwrap().contains(&text)),
        "{seen}"
    );
    // As data were held back, it has failed.
    agent.stop("from");
    agent.wait("from", has_ended);
}

/// A session whose paths others use: the one to jb carries two thirds of its data. Jb sheds, the others nothing, and what is shed is lost
/// nowhere.
#[test]
fn a_session_sheds_what_a_path_cannot_carry() {
    let link = "rate = \"700k\"\nbuffer = \"20KiB\"";
    let Some(site) = Site::on_a_path_with(link) else {
        return;
    };
    let session = site.session("shared", &STATIONS, "rate = \"1M\"\nrepeat = 6000", "");
    let text = fs::read_to_string(&session).unwrap();
    let text = text.replace("safe = \"off\"", "safe = \"shared\"");
    let text = text.replace("around = \"1s\"", "version = 2\naround = \"8s\"");
    // Where the port after jb's data is not free.
    let close = site.room.write("close.toml", text.replace("2634", "2633"));
    assert_eq!(site.run("close", &["run", &close, "--check"]), Some(1));
    let said = site.room.text("close.err");
    assert!(
        said.contains("10.77.0.1:2633 is in use by another flow or stream, too (under SafeUDP"),
        "{said}"
    );
    fs::write(&session, text).unwrap();
    let steps = "check\nbegin\nwait correlator running\nwait jb shed 100 2min\nwait ef sent 100 2min\nwait on sent 100 2min
stop ef\nstop jb\nstop on\nwait ef ended\nwait jb ended\nwait on ended\nstop correlator\nwait correlator ended\n";
    let steps = site.room.write("shared.script", steps);
    let said = site.run_well("shared", &["run", &session, "--script", &steps]);
    assert!(said.contains("no problems found"), "{said}");
    let found = site.result("shared", "jive", "correlator");
    for (name, stream) in STATIONS.iter().zip(found["streams"].as_array().unwrap()) {
        let sent = site.result("shared", name, name);
        let safe = &sent["safe"];
        assert_eq!(safe["mode"], "shared", "{sent}");
        let accounts = &safe["accounts"];
        assert!(accounts.is_object(), "{sent}");
        for (count, whole) in [
            ("offered", &sent),
            ("shed", &sent),
            ("shed", stream),
            ("unique", stream),
        ] {
            assert_eq!(
                accounts[count], whole[count],
                "{name} {count}: {sent} {stream}"
            );
        }
        let [lost, shed] = ["lost", "shed"].map(|count| number(accounts, count));
        assert!(number(stream, "lost") <= lost, "{sent} {stream}");
        // On a busy machine reports can be late, as if more were lost.
        assert!(shed > 0 || *name != "jb", "{sent}");
    }
}

/// A flow that nobody can control is refused before it starts.
#[test]
fn transports_that_cannot_be_controlled_are_refused() {
    let agent = Agent::start("name = \"ef\"\n");
    let flow = send("from", "tcp://127.0.0.1:9", "8M");
    let said = agent.refused(&with(flow, &json!({"safe": "shared"})), 422);
    assert!(said.contains("cannot control"), "{said}");
}

/// The port for messages is one that a flow listens on, and a key is given or readable.
#[test]
fn keys_and_ports_of_messages_are_checked() {
    let [free] = free_ports::<1>();
    let port = free.port();
    let agent = Agent::start(&format!(
        "targets = [\"127.0.0.0/8\", \"192.0.2.0/24\"]\nports = \"{}-{port}\"\n",
        port - 1
    ));
    let on = |id: &str, port: u16, is_safe: bool| {
        let from = format!("udp://{}:{port}", free.ip());
        with(recv(id, "null"), &json!({"from": from, "safe": is_safe}))
    };
    let said = agent.refused(&on("a", port, true), 422);
    assert!(said.contains(&format!("not on {}", port + 1)), "{said}");
    let flows = json!({"flows": [on("a", port - 1, true), on("b", port, false)]});
    let found = agent.ask(Method::POST, "/api/v1/check", &flows).body;
    let problems = found["flows"][1]["problems"].to_string();
    assert!(problems.contains("another flow"), "{found}");

    let to = format!("udp://{free}");
    let far = with(
        send("s", "udp://192.0.2.1:2630", "1M"),
        &json!({"safe": "shared"}),
    );
    let said = agent.refused(&far, 422);
    assert!(said.contains("key"), "{said}");
    let safe = with(send("s", &to, "1M"), &json!({"safe": "shared"}));
    for (more, says) in [
        (
            json!({"key-file": "/etc/passwd"}),
            "not a file in a directory",
        ),
        (json!({"key-file": "key:12"}), "64 hexadecimal digits"),
        (
            json!({"key-file": format!("key:{}", "+1".repeat(32))}),
            "64 hexadecimal digits",
        ),
        (json!({"weight": 11}), "1 to 10"),
        (json!({"safe": "never"}), "never"),
    ] {
        let said = agent.refused(&with(safe.clone(), &more), 422);
        assert!(said.contains(says), "{more}: {said}");
    }
}
