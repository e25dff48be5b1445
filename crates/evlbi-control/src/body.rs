//! Response bodies that are read from a file while they are sent, never as a whole.

use std::fs::File;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes per read.
const BLOCK: usize = 64 << 10;

/// Returns the next `length` bytes of a file as a body.
pub fn file_body(file: File, length: u64) -> Body {
    Body::new(FileBody {
        file: tokio::fs::File::from_std(file),
        left: length,
    })
}

struct FileBody {
    file: tokio::fs::File,
    left: u64,
}

impl HttpBody for FileBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let max = self.left.min(BLOCK as u64) as usize;
        let mut bytes = vec![0; max];
        let mut buffer = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.file).poll_read(context, &mut buffer))?;
        let count = buffer.filled().len();
        if count == 0 {
            // The file is shorter than the Content-Length header.
            return Poll::Ready(Some(Err(std::io::ErrorKind::UnexpectedEof.into())));
        }
        bytes.truncate(count);
        self.left -= count as u64;
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
