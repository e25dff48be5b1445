//! Capture files, pcap and pcapng, also compressed by gzip, read in one pass.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use evlbi_wire::packet::Link;
use flate2::bufread::GzDecoder;
use pcap_parser::pcapng::{Block, OptionCode, PcapNGOption};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{PcapBlockOwned, PcapError, create_reader};

/// Size of a read, and maximum accepted block, in bytes.
const BUFFER: usize = 1 << 20;
const MAX: usize = 64 << 20;
/// First bytes of a gzip file (RFC 1952).
const PACKED: [u8; 2] = [0x1f, 0x8b];

/// Reason why a file cannot be read as a capture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// It cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is empty.
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
    /// Its start cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error, or defect of the compressed file.
        source: io::Error,
    },
    /// It starts with something else.
    #[error(
        "{} is not a capture: it starts neither like pcap nor like pcapng (tcpdump -w, dumpcap), compressed by gzip or not; decompress other formats first",
        .0.display()
    )]
    NoCapture(PathBuf),
}

/// A packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Time of the packet, in nanoseconds since 1970; `None` if the file has none.
    pub at: Option<u64>,
    /// Outermost protocol; `None` if it is unknown here.
    pub link: Option<Link>,
    /// Its length on the wire.
    pub on_wire: u32,
    /// The captured bytes.
    pub bytes: &'a [u8],
}

/// Information in the file besides its packets.
#[derive(Clone, Debug, Default)]
pub struct Remarks {
    /// Packets that the capturing host dropped, if the file has this count.
    pub dropped: Option<u64>,
    /// Position in bytes from which on it cannot be read, and why.
    pub broken: Option<(u64, String)>,
    /// Numbers of unknown link types.
    pub unknown_links: Vec<i32>,
    /// Byte order of the section.
    is_big: bool,
}

/// A capture in the process of reading.
pub struct Reader {
    blocks: Box<dyn PcapReaderIterator + Send>,
    interfaces: Vec<Interface>,
    remarks: Remarks,
    size: usize,
    read: u64,
    input: Arc<InputState>,
}

/// Interface of captured packets.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: Option<Link>,
    /// Ticks of its clock per second, and its offset in seconds.
    resolution: u64,
    offset: i64,
    dropped: Option<u64>,
}

/// State of an input, for its reader.
#[derive(Default)]
struct InputState {
    /// Bytes of the file that were read, before decompression.
    position: AtomicU64,
    /// Reason for an early end.
    failed: OnceLock<io::Error>,
}

/// A file or standard input, decompressed.
struct Input {
    unpacked: Box<dyn Read + Send>,
    state: Arc<InputState>,
}

impl Input {
    /// Detects compression of `file` by its first bytes.
    fn new(file: impl Read + Send + 'static) -> Input {
        let state = Arc::new(InputState::default());
        let mut file = Counted(file, Arc::clone(&state));
        let mut head = Vec::new();
        let failed = file.by_ref().take(2).read_to_end(&mut head).err();
        if let Some(error) = failed {
            let _ = state.failed.set(error);
        }
        let is_packed = head == PACKED;
        let whole = Cursor::new(head).chain(file);
        Input {
            unpacked: match is_packed {
                true => Box::new(Members(Some(GzDecoder::new(BufReader::new(whole))))),
                false => Box::new(whole),
            },
            state,
        }
    }
}

/// Unpacks the members of a gzip file (RFC 1952, section 2.2). Padding after the last one is skipped.
struct Members<R>(Option<GzDecoder<BufReader<R>>>);

impl<R: Read> Read for Members<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let count = member.read(into)?;
            if count > 0 || into.is_empty() {
                return Ok(count);
            }
            let rest = self.0.take().map(GzDecoder::into_inner);
            if let Some(mut rest) = rest
                && rest.fill_buf()?.first() == Some(&PACKED[0])
            {
                self.0 = Some(GzDecoder::new(rest));
            }
        }
        Ok(0)
    }
}

impl Read for Input {
    /// Fills the buffer if possible, so that a pipe behaves like a file. An error ends the input, which keeps all data before it.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() && self.state.failed.get().is_none() {
            match self.unpacked.read(&mut into[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let _ = self.state.failed.set(error);
                }
            }
        }
        Ok(filled)
    }
}

/// A file that counts the bytes read from it.
struct Counted<R>(R, Arc<InputState>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(into)?;
        self.1.position.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Reader {
    /// Opens a capture; `-` is standard input.
    ///
    /// # Errors
    /// [`CaptureError`] if it cannot be read, or does not start like a capture.
    pub fn open(path: &Path) -> Result<Reader, CaptureError> {
        let name = || path.to_owned();
        let input = match path.as_os_str().as_encoded_bytes() {
            b"-" => Input::new(io::stdin()),
            _ => Input::new(File::open(path).map_err(|source| CaptureError::Open {
                path: name(),
                source,
            })?),
        };
        let state = Arc::clone(&input.state);
        let blocks = match create_reader(BUFFER, input) {
            Ok(blocks) => blocks,
            Err(error) => {
                let failed = Arc::into_inner(state).and_then(|state| state.failed.into_inner());
                return Err(match (failed, error) {
                    (Some(source), _) => CaptureError::Unreadable {
                        path: name(),
                        source,
                    },
                    (None, PcapError::Eof) => CaptureError::Empty(name()),
                    (None, _) => CaptureError::NoCapture(name()),
                });
            }
        };
        Ok(Reader {
            blocks,
            interfaces: Vec::new(),
            remarks: Remarks::default(),
            size: BUFFER,
            read: 0,
            input: state,
        })
    }

    /// Returns the bytes of the decompressed capture that were read so far.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Returns the bytes of the file that were read so far: fewer than of the capture, if it is compressed.
    pub(super) fn position(&self) -> u64 {
        self.input.position.load(Ordering::Relaxed)
    }

    /// Gives the next packet to `take`; returns false at the end.
    pub(super) fn next(&mut self, mut take: impl FnMut(Record)) -> bool {
        loop {
            let mut why = match self.blocks.next() {
                Ok((length, block)) => {
                    let record = record(&block, &mut self.interfaces, &mut self.remarks);
                    let is_packet = record.is_some();
                    if let Some(record) = record {
                        take(record);
                    }
                    self.read += length as u64;
                    self.blocks.consume(length);
                    if is_packet {
                        return true;
                    }
                    continue;
                }
                Err(PcapError::Eof) if self.input.failed.get().is_none() => return false,
                Err(PcapError::Incomplete(_)) => match self.blocks.refill() {
                    Ok(()) => continue,
                    Err(error) => format!("cannot be read: {error:?}"),
                },
                Err(PcapError::BufferTooSmall) => {
                    self.size *= 2;
                    if self.size > MAX || !self.blocks.grow(self.size) {
                        "a block of more than 64 MiB".into()
                    } else if self.blocks.refill().is_err() {
                        "cannot be read".into()
                    } else {
                        continue;
                    }
                }
                Err(PcapError::UnexpectedEof) => "it ends within a packet".into(),
                Err(PcapError::NomError(..) | PcapError::OwnedNomError(..)) => {
                    "no valid block is there".into()
                }
                Err(other) => format!("{other:?}"),
            };
            if let Some(error) = self.input.failed.get() {
                why = match error.kind() {
                    io::ErrorKind::UnexpectedEof => "the packed file is cut off there".into(),
                    _ => error.to_string(),
                };
            }
            self.remarks.broken = Some((self.read, why));
            return false;
        }
    }

    /// Returns the information besides the packets.
    pub(super) fn remarks(&self) -> Remarks {
        let mut remarks = self.remarks.clone();
        remarks.add_dropped(&self.interfaces);
        remarks
    }
}

impl Remarks {
    /// Adds the drops of interfaces.
    fn add_dropped(&mut self, interfaces: &[Interface]) {
        let dropped = interfaces.iter().map(|interface| interface.dropped);
        let all = dropped.chain([self.dropped]).flatten();
        self.dropped = all.reduce(u64::saturating_add);
    }
}

/// Returns a link type by its number; notes unknown ones.
fn known(number: i32, remarks: &mut Remarks) -> Option<Link> {
    let link = Link::from_number(number);
    if link.is_none() && !remarks.unknown_links.contains(&number) {
        remarks.unknown_links.push(number);
    }
    link
}

/// Returns the ticks per second by `if_tsresol`: a power of ten, or of two.
fn ticks(resolution: u8) -> u64 {
    let power = u32::from(resolution & 0x7f);
    match resolution & 0x80 {
        0 => 10_u64.checked_pow(power),
        _ => 2_u64.checked_pow(power),
    }
    .unwrap_or(u64::MAX)
}

/// Returns an option of eight bytes, in the section's byte order.
fn option(options: &[PcapNGOption], code: OptionCode, is_big: bool) -> Option<u64> {
    let option = options.iter().find(|option| option.code == code)?;
    let bytes = *option.value.first_chunk::<8>()?;
    Some(match is_big {
        true => u64::from_be_bytes(bytes),
        false => u64::from_le_bytes(bytes),
    })
}

/// Returns the packet in a block, if there is one; keeps other information.
fn record<'a>(
    block: &'a PcapBlockOwned,
    interfaces: &mut Vec<Interface>,
    remarks: &mut Remarks,
) -> Option<Record<'a>> {
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            let is_fine = header.is_nanosecond_precision();
            interfaces.push(Interface {
                link: known(header.network.0, remarks),
                resolution: if is_fine { 1_000_000_000 } else { 1_000_000 },
                offset: 0,
                dropped: None,
            });
            None
        }
        PcapBlockOwned::Legacy(packet) => {
            let interface = interfaces.first()?;
            let fraction = u64::from(packet.ts_usec) * (1_000_000_000 / interface.resolution);
            Some(Record {
                at: Some(u64::from(packet.ts_sec) * 1_000_000_000 + fraction),
                link: interface.link,
                on_wire: packet.origlen,
                bytes: packet.data,
            })
        }
        PcapBlockOwned::NG(block) => match block {
            Block::SectionHeader(section) => {
                remarks.add_dropped(interfaces);
                interfaces.clear();
                remarks.is_big = section.big_endian();
                None
            }
            Block::InterfaceDescription(interface) => {
                let offset = option(&interface.options, OptionCode::IfTsoffset, remarks.is_big);
                let mut options = interface.options.iter();
                let resolution = options.find(|option| option.code == OptionCode::IfTsresol);
                let resolution = resolution.and_then(|option| option.value.first());
                interfaces.push(Interface {
                    link: known(interface.linktype.0, remarks),
                    resolution: ticks(*resolution.unwrap_or(&6)),
                    offset: offset.unwrap_or(0).cast_signed(),
                    dropped: None,
                });
                None
            }
            Block::InterfaceStatistics(told) => {
                let interface = interfaces.get_mut(told.if_id as usize)?;
                let counts = [OptionCode::IsbIfDrop, OptionCode::IsbOsDrop];
                let counts = counts.map(|code| option(&told.options, code, remarks.is_big));
                let counts = counts.into_iter().flatten();
                interface.dropped = counts.reduce(u64::saturating_add).or(interface.dropped);
                None
            }
            Block::EnhancedPacket(packet) => {
                let interface = interfaces.get(packet.if_id as usize);
                let at = interface.and_then(|interface| {
                    let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                    let nanos =
                        u128::from(ticks) * 1_000_000_000 / u128::from(interface.resolution);
                    let offset = i128::from(interface.offset) * 1_000_000_000;
                    u64::try_from(nanos.cast_signed() + offset).ok()
                });
                Some(Record {
                    at,
                    link: interface.and_then(|interface| interface.link),
                    on_wire: packet.origlen,
                    bytes: packet.packet_data(),
                })
            }
            Block::SimplePacket(packet) => Some(Record {
                at: None,
                link: interfaces.first()?.link,
                on_wire: packet.origlen,
                bytes: packet.packet_data(),
            }),
            _ => None,
        },
    }
}
