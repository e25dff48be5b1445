//! Trust between a controller and an agent: certificates by their fingerprint, tokens, and the directory that holds both.

use std::fs;

use evlbi_testkit::{Room, command};
use reqwest::Method;

use crate::control::support::{Agent, EVLBI};

/// A certificate with another fingerprint is refused; the right one is accepted by its fingerprint alone, once the controller's user has
/// confirmed it. No session file can make the controller send any other text as a token, nor a token to another host.
#[test]
fn another_certificate_is_refused() {
    let agent = Agent::start("");
    let room = Room::new();
    let token = room.write("token", agent.token("operate"));
    let right = agent.ready["fingerprint"].as_str().unwrap();
    let wrong = format!(
        "{}{}",
        if right.starts_with('0') { "1" } else { "0" },
        &right[1..]
    );
    let check = |name: &str, fingerprint: &str, more: &str, trust: bool| {
        let host = format!(
            "name = \"one\"\n[[host]]\nname = \"ef\"\nagent = \"https://{}\"\nfingerprint = \"{fingerprint}\"\n{more}\n",
            agent.address
        );
        let session = room.write("session.toml", host);
        let mut run = command(EVLBI);
        run.args(["run", "--check", &session, "--dir", &room.path(name)]);
        run.env("EVLBI_TOKEN", agent.token("operate"));
        if trust {
            run.args(["--trust", "ef"]);
        }
        let output = run.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let with_token = format!("token-file = {token:?}");
    let (is_well, said) = check("one", &wrong, &with_token, true);
    let refused = format!("its certificate has the fingerprint {right}, not {wrong}");
    assert!(!is_well && said.contains(&refused), "{said}");
    // Neither a file's token nor the environment's, until the user confirms it: once.
    for more in [with_token.as_str(), ""] {
        let (is_well, said) = check("two", right, more, false);
        assert!(!is_well && said.contains("give --trust ef once"), "{said}");
    }
    let (is_well, said) = check("two", right, &with_token, true);
    assert!(is_well, "{said}");
    for more in [with_token.as_str(), ""] {
        let (is_well, said) = check("two", right, more, false);
        assert!(is_well, "{said}");
    }
    // Other secrets, of any agent, are not tokens.
    let secret = "correct-horse-battery-staple";
    for text in [
        secret,
        "0123456789abcdef",
        &"x".repeat(64),
        &format!("{secret}\n{}", agent.token("watch")),
    ] {
        let file = room.write("secret", text);
        let (is_well, said) = check("two", right, &format!("token-file = {file:?}"), false);
        assert!(!is_well && said.contains("no agent's token in"), "{said}");
        assert!(!said.contains(secret), "{said}");
    }
    // The token of a directory is for its own agent, and is in it.
    let mine = format!("folder = {:?}", agent.room.folder());
    let (is_well, said) = check("two", &wrong, &mine, true);
    assert!(
        !is_well && said.contains("is not that of the agent of its `folder`"),
        "{said}"
    );
    fs::create_dir_all(room.path("fake/tokens")).unwrap();
    room.write("fake/certificate.pem", agent.room.read("certificate.pem"));
    std::os::unix::fs::symlink(&token, room.path("fake/tokens/operate")).unwrap();
    let fake = format!("folder = {:?}", room.path("fake"));
    let (is_well, said) = check("two", right, &fake, false);
    assert!(
        !is_well && said.contains("is a link out of its directory"),
        "{said}"
    );
}

/// The next start replaces a token that was removed, and the old one is no longer valid; the others stay.
#[test]
fn a_token_that_is_removed_is_recreated() {
    let agent = Agent::start("");
    let [old, watch] = ["operate", "watch"].map(|role| agent.token(role));
    fs::remove_file(agent.room.path("tokens/operate")).unwrap();
    let agent = agent.killed_and_restarted();
    assert_eq!(agent.token("watch"), watch);
    assert_ne!(agent.token("operate"), old);
    for (token, status) in [(&old, 401), (&watch, 200), (&agent.token("operate"), 200)] {
        let request = agent.bare(Method::GET, "/api/v1/flows").bearer_auth(token);
        assert_eq!(agent.send(request).status, status);
    }
}

/// An agent must not trust files that others could write.
#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    for mode in [0o770, 0o702] {
        let room = Room::new();
        fs::set_permissions(room.folder(), fs::Permissions::from_mode(mode)).unwrap();
        let output = command(EVLBI)
            .args(["agent", "--bind", "127.0.0.1:0", "--dir"])
            .arg(room.folder())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains("other users may write to"),
            "{said}"
        );
        assert_eq!(fs::read_dir(room.folder()).unwrap().count(), 0);
    }
}
