//! Datagrams that leave together, each a short head and a body that is not copied.

use std::marker::PhantomData;

/// Maximum length of a datagram's head in bytes: the reply to a probe. A sequence number and a VDIF header are shorter.
pub const MAX_HEAD: usize = evlbi_wire::probe::REPLY_LEN;

/// Bytes before the body of a datagram: a sequence number, a re-timed VDIF header, or both.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; MAX_HEAD],
    length: usize,
}

impl Head {
    /// Returns an empty head.
    #[inline]
    pub fn new() -> Head {
        Head {
            bytes: [0; MAX_HEAD],
            length: 0,
        }
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// Panics if there are more than [`MAX_HEAD`] in total.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Returns all bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Default for Head {
    fn default() -> Head {
        Head::new()
    }
}

impl From<&[u8]> for Head {
    /// # Panics
    /// Panics if there are more than [`MAX_HEAD`] bytes.
    fn from(bytes: &[u8]) -> Head {
        let mut head = Head::new();
        head.append(bytes);
        head
    }
}

/// A datagram of a [`Train`], or a piece of a byte stream.
pub struct Piece {
    head: Head,
    body: *const u8,
    body_length: usize,
}

impl Piece {
    /// Returns the head.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.bytes()
    }

    /// Returns the body.
    #[inline]
    pub fn body(&self) -> &[u8] {
        // SAFETY: a piece is reached only through its train, which borrows the body.
        unsafe { std::slice::from_raw_parts(self.body, self.body_length) }
    }

    /// Returns the length of both in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.head.length + self.body_length
    }
}

/// Memory for trains, reused so that none allocates.
#[derive(Default)]
pub struct Pieces(Vec<Piece>);

// SAFETY: the pointers are followed only through a `Train`, which borrows what they point to. Between trains this is only spare
// capacity.
unsafe impl Send for Pieces {}

impl Pieces {
    /// Starts a train.
    pub fn begin<'a>(&mut self) -> Train<'_, 'a> {
        self.0.clear();
        Train {
            pieces: &mut self.0,
            bodies: PhantomData,
        }
    }
}

/// Datagrams that leave together, in order.
pub struct Train<'t, 'a> {
    pieces: &'t mut Vec<Piece>,
    bodies: PhantomData<&'a [u8]>,
}

impl<'a> Train<'_, 'a> {
    /// Adds a datagram of `head` (copied) followed by `body` (sent in place).
    #[inline]
    pub fn push(&mut self, head: Head, body: &'a [u8]) {
        self.pieces.push(Piece {
            head,
            body: body.as_ptr(),
            body_length: body.len(),
        });
    }

    /// Returns its datagrams.
    #[inline]
    pub fn pieces(&self) -> &[Piece] {
        self.pieces
    }

    /// Returns the number of datagrams.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}
