//! A running test at the client: round trips before and after it, its control loop, its windows, and the reports of both endpoints.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::host::Counters;
use evlbi_net::run::Run;

use super::link::{
    ALIVE, GONE, Link, POLL_INTERVAL, SLOW_POLL_INTERVAL, STOPPING, draining, poll_interval,
};
use super::{
    Event, Progress, Result, SessionError, Settled, Show, Side, ensure_running, unexpected,
};
use crate::control::{Control, ControlError};
use crate::direction::Direction;
use crate::endpoint::{EndpointReport, FromClient, FromResponder, Requests, Test, Window, Work};

/// Number of clock requests before and after the streams.
const ROUND_TRIPS: u64 = 10;
/// Time between clock requests.
const APART: Nanos = Nanos(2_000_000);
/// Length of a clock request, in bytes.
const REQUEST: usize = 64;
/// Timeout for reading what the socket still holds when a stream is over.
const TAKING_UP: Duration = Duration::from_secs(30);
/// Timeout for replies to clock requests.
const REPLIES: Duration = Duration::from_millis(500);
const REPLIES_AT_STOP: Duration = Duration::from_millis(200);
/// Maximum number of attempts if there is no reply.
const CLOCK_TRIES: usize = 3;

/// A running test.
pub(super) struct Testing<'a, 'b> {
    pub(super) control: &'a mut Control,
    pub(super) work: Work,
    pub(super) hosts: Hosts,
    /// Number of the next clock request.
    pub(super) clock: u64,
    pub(super) test: &'a Test,
    pub(super) run: &'a Run,
    pub(super) show: &'a mut Show<'b>,
}

impl Testing<'_, '_> {
    /// Runs until both endpoints are done. Returns the reason of an early end, the number of sent requests, and the responder's report.
    pub(super) fn both(&mut self) -> Result<(Option<String>, u64, EndpointReport)> {
        let stopped = self.watch()?;
        let requests = self.test.requests.map_or(0, |_| self.work.asked());
        // While the listener still reads replies.
        self.measure_clock()?;
        if let Some(used) = self.hosts.used_there {
            self.work.note_used(used, true);
        }
        Ok((stopped, requests, self.done()?))
    }

    /// Sends requests until the responder has found the local socket.
    pub(super) fn be_found(&mut self, port: u16) -> Result<()> {
        ensure_running(self.run)?;
        let clock = self.run.clock();
        let asked = clock.now();
        self.ask_clock(1)?;
        self.control.send(&FromClient::Start { port })?;
        loop {
            match self.control.receive(POLL_INTERVAL)? {
                Some(FromResponder::Started) => return Ok(()),
                None if clock.now().since(asked) < GONE.into() => {}
                other => return Err(unexpected(other)),
            }
            ensure_running(self.run)?;
            self.ask_clock(1)?;
        }
    }

    /// Measures some round trips for the clock offset, without other traffic; repeats them if there is no reply.
    pub(super) fn measure_clock(&mut self) -> Result<()> {
        let replies = |work: &Work| work.heard().clock.load(Ordering::Relaxed);
        let before = replies(&self.work);
        for _ in 0..CLOCK_TRIES {
            self.ask_clock(ROUND_TRIPS)?;
            let clock = self.run.clock();
            let asked = clock.now();
            let replies = || replies(&self.work) - before;
            let timeout = || match self.run.is_stopped() {
                true => Nanos::from(REPLIES_AT_STOP),
                false => REPLIES.into(),
            };
            while replies() < ROUND_TRIPS && clock.now().since(asked) < timeout() {
                clock.sleep(Duration::from_millis(1));
            }
            if replies() > 0 || self.run.is_stopped() {
                break;
            }
        }
        Ok(())
    }

    /// Sends clock requests.
    fn ask_clock(&mut self, count: u64) -> Result<()> {
        let requests = Requests {
            count,
            size: REQUEST,
            apart: APART,
        };
        self.work.ask(self.clock, requests)?;
        self.clock += count;
        Ok(())
    }

    /// Watches over the running streams. Returns the reason of an early end.
    fn watch(&mut self) -> Result<Option<String>> {
        let (test, run, clock) = (self.test, self.run, self.run.clock());
        let begun = clock.now();
        let mut link = Link::new(test, begun);
        let (mut stopped, mut has_all) = (None, test.back.is_none());
        let (mut sent_at, mut stopped_at) = (None, None::<Nanos>);
        loop {
            match self.hear(&mut link)? {
                Some(FromResponder::Sent(departed)) => {
                    self.hosts.used_there = Some(departed.used);
                    stopped = stopped.or(departed.stopped);
                    has_all = true;
                }
                None => {}
                other => return Err(unexpected(other)),
            }
            let now = clock.now();
            let work = &mut self.work;
            if link.is_due(now) {
                say_alive(self.control, work)?;
                let shown = (self.show)(&Event::Progress(&Progress {
                    used: work.used().max(work.asked()).max(work.given()),
                    arrived_there: link.arrived,
                    arrived_here: work.arrived(),
                    seconds: now.since(begun).as_secs_f64(),
                    connections: work.readings(),
                }));
                shown.map_err(SessionError::Told)?;
            }
            let has_sent = work.has_sent()?;
            if !has_sent && stopped.is_none() {
                if run.is_stopped() {
                    stopped = Some("interrupted".to_owned());
                } else if test.gives() && link.is_broken(now) {
                    stopped = Some(link.broken());
                    work.give_up();
                }
                if stopped.is_some() {
                    work.stop_sending();
                    stopped_at = Some(now);
                }
            }
            let most = Nanos::from(draining(run.is_stopped()));
            if stopped_at.is_some_and(|at| now.since(at) > most) {
                work.give_up();
            }
            let has_all = has_all && work.has_taken();
            if run.is_stopped() && has_sent && !has_all {
                // The responder stops when it receives this endpoint's final message.
                return Ok(Some("interrupted".to_owned()));
            }
            // Replies are in flight.
            let since = has_sent.then(|| *sent_at.get_or_insert(now));
            let has_replies = test.requests.is_none_or(|all| {
                let replies = work.heard().replies.load(Ordering::Relaxed);
                let is_over = since.is_some_and(|since| now.since(since) >= test.timeout);
                replies >= all.count || is_over || run.is_stopped()
            });
            if has_sent && has_all && has_replies {
                return Ok(stopped);
            }
        }
    }

    /// Processes messages of the responder, and settled windows; returns any other message to the caller.
    fn hear(&mut self, link: &mut Link) -> Result<Option<FromResponder>> {
        let message = self
            .control
            .receive::<FromResponder>(poll_interval(self.test, self.run.is_stopped()))?;
        let now = self.run.clock().now();
        link.check(self.control, now)?;
        let rest = match message {
            Some(FromResponder::Alive {
                unique,
                used,
                not_sent,
                host,
            }) => {
                link.arrived(unique, now);
                self.work.note_used(used, false);
                self.hosts.not_sent_there = not_sent;
                if let Some(host) = host {
                    self.hosts.there = *host;
                }
                None
            }
            Some(FromResponder::Window { window, host }) => {
                self.hosts.there = *host;
                self.settled(Direction::There, &window, self.work.not_sent())?;
                None
            }
            other => other,
        };
        self.tell_windows()?;
        Ok(rest)
    }

    /// Tells the responder that all was sent. After a stop neither host waits for missing datagrams: returns the time of the stop.
    fn say_over(&mut self) -> Result<Option<Nanos>> {
        let is_in_haste = self.run.is_stopped();
        if is_in_haste {
            self.work.make_haste();
        }
        let used = self.work.used();
        self.control.send(&FromClient::Over { used, is_in_haste })?;
        Ok(is_in_haste.then(|| self.run.clock().now()))
    }

    /// Waits for the responder's report, and processes the messages before it.
    fn done(&mut self) -> Result<EndpointReport> {
        let (test, run, clock) = (self.test, self.run, self.run.clock());
        let mut link = Link::new(test, clock.now());
        let mut stopped_at = self.say_over()?;
        let end = loop {
            match self.hear(&mut link)? {
                Some(FromResponder::Done(end)) => break *end,
                Some(FromResponder::Sent(departed)) => self.work.note_used(departed.used, true),
                None => {}
                other => return Err(unexpected(other)),
            }
            let now = clock.now();
            if link.is_due(now) {
                say_alive(self.control, &self.work)?;
            }
            if run.is_stopped() && stopped_at.is_none() {
                stopped_at = self.say_over()?;
            }
            let is_silent =
                |at: Nanos| self.control.heard() < at && now.since(at) > STOPPING.into();
            if stopped_at.is_some_and(is_silent) {
                return Err(SessionError::Interrupted);
            }
        };
        if test.back.is_some() {
            let begun = clock.now();
            let timeout = || match run.is_stopped() {
                true => Nanos::from(STOPPING),
                false => test.timeout.plus(TAKING_UP.into()),
            };
            while !self.work.has_heard() && clock.now().since(begun) < timeout() {
                if run.is_stopped() {
                    self.work.make_haste();
                }
                clock.sleep(Duration::from_millis(1));
            }
            self.tell_windows()?;
        }
        Ok(end)
    }

    /// Reports the local windows that are settled.
    fn tell_windows(&mut self) -> Result<()> {
        while let Some(window) = self.work.window() {
            self.settled(Direction::Back, &window, self.hosts.not_sent_there)?;
        }
        Ok(())
    }

    /// Reports a window.
    fn settled(&mut self, direction: Direction, window: &Window, not_sent: u64) -> Result<()> {
        let hosts = &mut self.hosts;
        let here = self.run.counters().unwrap_or_default().since(&hosts.begin);
        let now = [here, hosts.there.clone()];
        // A window is settled after the loss timeout; messages with departures and counters arrive once a second.
        let stream = match direction {
            Direction::There => &self.test.there,
            Direction::Back => &self.test.back,
        };
        let length = stream.as_ref().zip(self.test.window);
        let length = length.map_or(Nanos(0), |(stream, count)| stream.due(count));
        let since = length.plus(self.test.timeout).plus((4 * ALIVE).into());
        let told = self.run.clock().now();
        let past = &mut hosts.past[direction as usize];
        let is_before = |(at, _): &(Nanos, [Counters; 2])| told.since(*at) >= since;
        while past.get(1).is_some_and(is_before) {
            past.pop_front();
        }
        let before = past.front().filter(|it| is_before(it));
        let before = before
            .map(|(_, counted)| counted.clone())
            .unwrap_or_default();
        let changes = [0, 1].map(|end| now[end].since(&before[end]));
        if past
            .back()
            .is_none_or(|(at, _)| told.since(*at) >= SLOW_POLL_INTERVAL.into())
        {
            past.push_back((told, now));
        }
        let [here, there] = [0, 1].map(|end| Side {
            counters: &changes[end],
            interface: hosts.interfaces[end].as_deref(),
        });
        let (sender, receiver) = direction.ends(here, there);
        (self.show)(&Event::Settled(&Settled {
            direction,
            window,
            not_sent,
            sender,
            receiver,
        }))
        .map_err(SessionError::Told)
    }
}

fn say_alive(control: &mut Control, work: &Work) -> Result<(), ControlError> {
    let (unique, used) = (work.arrived(), work.used());
    control.send(&FromClient::Alive { unique, used })
}

/// Counters of both hosts since the start, from window to window of either direction.
#[derive(Default)]
pub(super) struct Hosts {
    pub(super) begin: Counters,
    pub(super) there: Counters,
    pub(super) not_sent_there: u64,
    /// Numbers that the responder's stream has used in total, once it has reported that.
    pub(super) used_there: Option<u64>,
    /// Local and remote interface.
    pub(super) interfaces: [Option<String>; 2],
    /// For each direction: local and remote counters at the times of reported windows, back to the earliest possible start of the next
    /// window.
    pub(super) past: [VecDeque<(Nanos, [Counters; 2])>; 2],
}
