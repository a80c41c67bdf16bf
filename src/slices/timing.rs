//! GPU time of one run, by timestamps where the device has them.

use std::time::Duration;

use crate::error::Result;
use crate::kernel::scope::scoped;
use crate::slices::readback::{poll_once, read_bytes};
use crate::slices::upload::Uploaded;

impl Uploaded {
    /// Whether [`Uploaded::run_async`] measures on the GPU, not from submission
    /// to completion.
    pub fn has_timestamps(&self) -> bool {
        let features = self.prepared.attention.device().features();
        features.contains(wgpu::Features::TIMESTAMP_QUERY)
    }

    /// Records and submits one run, waits for it, and returns the time it took:
    /// between two GPU timestamps around its compute pass where the device has
    /// them, else (native backends only) from submission to completion.
    ///
    /// # Errors
    /// As [`Uploaded::submit`] and [`Uploaded::read_async`].
    pub async fn run_async(&self) -> Result<Duration> {
        if self.has_timestamps() {
            return self.run_between_timestamps().await;
        }
        #[cfg(not(target_family = "wasm"))]
        let start = std::time::Instant::now();
        self.submit()?;
        poll_once(self.prepared.attention.device())?;
        #[cfg(not(target_family = "wasm"))]
        let elapsed = start.elapsed();
        #[cfg(target_family = "wasm")]
        let elapsed = Duration::ZERO;
        // A guest learns of a lost device only when it reads.
        let (device, queue) = (
            self.prepared.attention.device(),
            self.prepared.attention.queue(),
        );
        read_bytes(device, queue, self.output_buffer(), 4).await?;
        self.prepared.attention.check_faults()?;
        Ok(elapsed)
    }

    async fn run_between_timestamps(&self) -> Result<Duration> {
        let attention = &self.prepared.attention;
        let (device, queue) = (attention.device(), attention.queue());
        let (queries, resolved) = scoped(device, "creating timestamp queries", || {
            let queries = device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("attention timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            });
            let resolved = device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("attention timestamps"),
                size: 16,
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            });
            (queries, resolved)
        })?;
        let mut encoder = device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: Some("attention"),
                timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                    query_set: &queries,
                    beginning_of_pass_write_index: Some(0),
                    end_of_pass_write_index: Some(1),
                }),
            });
            self.record_in_pass(&mut pass)?;
        }
        encoder.resolve_query_set(&queries, 0..2, &resolved, 0);
        queue.submit([encoder.finish()]);
        let bytes = read_bytes(device, queue, &resolved, 16).await?;
        attention.check_faults()?;
        let mut ticks = bytes.chunks_exact(8).map(|word| {
            let mut eight = [0; 8];
            eight.copy_from_slice(word);
            u64::from_le_bytes(eight)
        });
        let (start, end) = (ticks.next().unwrap_or(0), ticks.next().unwrap_or(0));
        let nanoseconds =
            end.saturating_sub(start) as f64 * f64::from(queue.get_timestamp_period());
        Ok(Duration::from_nanos(nanoseconds as u64))
    }
}
