//! A running test at the responder: its ports and files, its control loop, and its messages.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::host::Counters;
use evlbi_net::tcp::Door;

use super::{Responder, ServeError, Served, rate_or_any};
use crate::control::{Control, ControlError};
use crate::endpoint::{Files, FromClient, FromResponder, Port, Test, Work};
use crate::measure::Stream;
use crate::session::{GONE, Link, POLL_INTERVAL, draining, plain, poll_interval};

/// Time that a test may take in addition to its streams: for finding each other, round trips, results.
const AROUND: Duration = Duration::from_secs(30);
/// Timeout for a client's first datagram.
const CALLING: Duration = Duration::from_secs(3);

impl Responder {
    pub(super) fn test(&self, control: &mut Control, test: &Test, peer: SocketAddr) -> Served {
        self.options.limits.allow(test)?;
        let _room = self.make_room(control, test)?;
        let mut local = control.stream().local_addr()?;
        local.set_port(0);
        let local = plain(local);
        let mut port =
            self.at_a_port(local, |local| Ok(Port::open(local, test, None, &self.run)?))?;
        let key = self.run.clock().random();
        let number = port.local_address().port();
        let interface = port.interface();
        let flows = test.flows.as_ref();
        let door = flows
            .map(|flows| {
                self.at_a_port(local, |local| Ok(flows.door(local, test.dscp, &self.run)?))
            })
            .transpose()?;
        control.send(&FromResponder::Opened {
            key,
            port: number,
            door: door.as_ref().map(Door::port),
            interface,
        })?;
        let theirs = self.until(control, |message| match message {
            FromClient::Start { port } => Some(port),
            _ => None,
        })?;
        let caller = port.caller(peer.ip(), key, CALLING, &self.run)?;
        self.ensure_running()?;
        if caller.is_none() && test.back.is_some() {
            return Err(ServeError::Blocked {
                from: peer.ip(),
                to: number,
            });
        }
        let other = caller.unwrap_or_else(|| plain(SocketAddr::new(peer.ip(), theirs)));
        let connections = match (flows, door) {
            (Some(flows), Some(door)) => flows.take(door, key, &self.run)?,
            _ => Vec::new(),
        };
        // A test that cannot start creates no file.
        let files = self.files(test)?;
        let most = Some(test.reply_rate());
        let stream = test.there.as_ref();
        let mut work = Work::begin(port, Some(other), key, stream, test, most, &self.run)?;
        // Before anything arrives that may be dropped.
        work.observe()?;
        control.send(&FromResponder::Started)?;
        self.until(control, |message| {
            matches!(message, FromClient::Go).then_some(())
        })?;
        tracing::info!("{peer}: {}", describe(test));
        if let Some(stream) = test.back {
            work.send(stream, test)?;
        }
        if let Some(flows) = flows {
            work.begin_flows(connections, flows, files, false, test.max_time)?;
        }
        self.watch(control, &mut work, test)?;
        let end = work.finish()?;
        Ok(control.send(&FromResponder::Done(Box::new(end)))?)
    }

    /// Opens something at a free one of the ports for tests.
    fn at_a_port<T>(&self, local: SocketAddr, open: impl Fn(SocketAddr) -> Served<T>) -> Served<T> {
        let Some(ports) = &self.options.ports else {
            return open(local);
        };
        let (from, to) = (*ports.start(), *ports.end());
        let all = u32::from(to - from) + 1;
        // Two tests that start at the same time seldom try the same port.
        let first = (self.run.clock().random() % u64::from(all)) as u32;
        for offset in 0..all {
            let port = from + ((first + offset) % all) as u16;
            match open(SocketAddr::new(local.ip(), port)) {
                Err(error) if error.is_in_use() => {}
                opened => return opened,
            }
        }
        Err(ServeError::NoPort { from, to })
    }

    /// Opens the local files of a test.
    fn files(&self, test: &Test) -> Served<Files> {
        let Some(flows) = &test.flows else {
            return Ok(Files::default());
        };
        let path = |name: &String| -> Served<PathBuf> {
            let folder = self.options.files.as_ref();
            let folder = folder.ok_or(ServeError::NoFiles)?;
            let mut parts = Path::new(name).components();
            match (parts.next(), parts.next()) {
                (Some(Component::Normal(_)), None) => Ok(folder.join(name)),
                _ => Err(ServeError::FileName(name.clone())),
            }
        };
        let gives = !flows.back.is_empty();
        let mut files = Files::default();
        if let Some(name) = flows.source.as_ref().filter(|_| gives) {
            let path = path(name)?;
            let opened = File::open(&path);
            files.source = Some(opened.map_err(|source| ServeError::Read { path, source })?);
        }
        if let Some(name) = flows.sink.as_ref().filter(|_| !gives) {
            let path = path(name)?;
            let made = File::create_new(&path);
            files.sink = Some(made.map_err(|source| ServeError::Make { path, source })?);
        }
        Ok(files)
    }

    /// Runs while the streams last.
    fn watch(&self, control: &mut Control, work: &mut Work, test: &Test) -> Served {
        // A sender that cannot keep its rate takes longer than calculated, but not longer than a test may. Data that waits in TCP has time
        // as long as any of it arrives.
        let longest = match test.flows {
            Some(_) => self.options.limits.duration,
            None => test.max_time.min(self.options.limits.duration),
        };
        let most = Nanos(longest.0.saturating_add(test.timeout.0)).plus(AROUND.into());
        let clock = self.run.clock();
        let begun = clock.now();
        let mut link = Link::new(test, begun);
        let (mut is_over, mut in_haste, mut has_told) = (false, false, test.back.is_none());
        // Bytes received by TCP so far, and the time since that count.
        let mut come = (0, begun);
        let counters = self.run.counters().unwrap_or_default();
        loop {
            let message = control.receive::<FromClient>(poll_interval(test, in_haste))?;
            let now = clock.now();
            link.check(control, now)?;
            let mut is_due = link.is_due(now);
            match message {
                Some(FromClient::Alive { unique, used }) => {
                    link.arrived(unique, now);
                    work.note_used(used, false);
                }
                Some(FromClient::Over { used, is_in_haste }) => {
                    work.note_used(used, true);
                    work.stop_sending();
                    if is_in_haste {
                        work.make_haste();
                    }
                    // The client asks whether this endpoint is alive.
                    is_due |= is_in_haste;
                    (is_over, in_haste) = (true, is_in_haste);
                }
                _ => {}
            }
            if is_due {
                let is_settled_there = test.back.is_some() && test.window.is_some();
                control.send(&FromResponder::Alive {
                    unique: work.arrived(),
                    used: work.used(),
                    not_sent: work.not_sent(),
                    host: is_settled_there.then(|| Box::new(self.since(&counters))),
                })?;
            }
            self.tell_windows(control, work, &counters)?;
            let has_sent = work.has_sent()?;
            if !has_sent && link.is_broken(now) {
                tracing::warn!("{}", link.broken());
                work.give_up();
            }
            if has_sent
                && !has_told
                && let Some(departed) = work.departed()
            {
                control.send(&FromResponder::Sent(Box::new(departed.clone())))?;
                has_told = true;
            }
            if is_over && has_sent && work.has_heard() {
                return Ok(self.tell_windows(control, work, &counters)?);
            }
            if work.arrived() > come.0 || !is_over {
                come = (work.arrived(), now);
            }
            if now.since(come.1) > draining(in_haste).into() {
                work.give_up();
            }
            if now.since(begun) > most {
                return Err(ServeError::TooLong);
            }
            self.ensure_running()?;
        }
    }

    /// Reports settled windows, and the counters of this host since the start.
    fn tell_windows(
        &self,
        control: &mut Control,
        work: &Work,
        begin: &Counters,
    ) -> Result<(), ControlError> {
        while let Some(window) = work.window() {
            control.send(&FromResponder::Window {
                window: Box::new(window),
                host: Box::new(self.since(begin)),
            })?;
        }
        Ok(())
    }

    fn since(&self, begin: &Counters) -> Counters {
        self.run.counters().unwrap_or_default().since(begin)
    }

    /// Waits for a message.
    fn until<T>(
        &self,
        control: &mut Control,
        mut is_it: impl FnMut(FromClient) -> Option<T>,
    ) -> Served<T> {
        let clock = self.run.clock();
        let end = clock.now().plus(GONE.into());
        while clock.now() < end {
            let message = control.receive(POLL_INTERVAL)?;
            if let Some(found) = message.and_then(&mut is_it) {
                return Ok(found);
            }
            self.ensure_running()?;
        }
        Err(ServeError::Stuck)
    }
}

fn describe(test: &Test) -> String {
    let way = |name: &str, stream: &Option<Stream>| {
        stream.as_ref().map(|stream| {
            let rate = rate_or_any(stream.rate());
            format!("{} bytes at {rate} {name}", stream.size)
        })
    };
    let ways = [way("to here", &test.there), way("from here", &test.back)];
    let flows = test.flows.as_ref().map(|flows| {
        let [there, back] = [&flows.there, &flows.back].map(Vec::len);
        format!("{there} TCP connections to here, {back} from here")
    });
    let ways: Vec<String> = ways.into_iter().chain([flows]).flatten().collect();
    match ways.as_slice() {
        [] => "requests".to_owned(),
        some => some.join(", "),
    }
}
