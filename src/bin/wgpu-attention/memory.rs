//! Lists whose length a file or a flag decides: an error where the host has no memory
//! for them, not the end of the process.

use wgpu_attention::Error;

/// An empty list with room for `count` values; `what` is the operand for the message.
pub fn reserved<T>(what: &str, count: usize) -> Result<Vec<T>, Error> {
    let mut values = Vec::new();
    match values.try_reserve_exact(count) {
        Ok(()) => Ok(values),
        Err(_) => Err(Error::HostMemory {
            what: what.to_owned(),
            count: count as u64,
        }),
    }
}

/// The `count` values that `values` gives.
pub fn collected<T>(
    what: &str,
    count: usize,
    values: impl IntoIterator<Item = T>,
) -> Result<Vec<T>, Error> {
    let mut list = reserved(what, count)?;
    list.extend(values.into_iter().take(count));
    Ok(list)
}

/// `bytes` bytes of 0xff.
pub fn filled(what: &str, bytes: u64) -> Result<Vec<u8>, Error> {
    let count = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut list = reserved(what, count)?;
    list.resize(count, 0xff);
    Ok(list)
}

/// A copy of `values`.
pub fn copied<T: Copy>(what: &str, values: &[T]) -> Result<Vec<T>, Error> {
    let mut list = reserved(what, values.len())?;
    list.extend_from_slice(values);
    Ok(list)
}
