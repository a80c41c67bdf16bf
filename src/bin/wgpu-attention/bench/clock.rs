//! Time of one compute pass, and buffers to and from the device.

use std::time::{Duration, Instant};

use wgpu_attention::{Error, wgpu};

use crate::report::Stop;

/// Measures compute passes: between two GPU timestamps where the device has
/// them, else from submission to completion.
pub struct Clock<'a> {
    pub device: &'a wgpu::Device,
    pub queue: &'a wgpu::Queue,
    stamps: Option<Stamps>,
}

struct Stamps {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
}

/// Bytes of two timestamps.
const STAMPS: u64 = 16;

impl<'a> Clock<'a> {
    pub fn new(device: &'a wgpu::Device, queue: &'a wgpu::Queue) -> Clock<'a> {
        let timed = device.features().contains(wgpu::Features::TIMESTAMP_QUERY);
        let stamps = timed.then(|| Stamps {
            queries: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("bench"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            }),
            resolved: device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("bench timestamps"),
                size: STAMPS,
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            }),
        });
        Clock {
            device,
            queue,
            stamps,
        }
    }

    /// What measures.
    pub fn name(&self) -> &'static str {
        match self.stamps {
            Some(_) => "GPU timestamps",
            None => "submit to done",
        }
    }

    /// Submits one pass and waits for it.
    pub fn time(
        &self,
        record: impl FnOnce(&mut wgpu::ComputePass<'_>) -> Result<(), Error>,
    ) -> Result<Duration, Stop> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: Some("bench"),
                timestamp_writes: self.stamps.as_ref().map(|stamps| {
                    wgpu::ComputePassTimestampWrites {
                        query_set: &stamps.queries,
                        beginning_of_pass_write_index: Some(0),
                        end_of_pass_write_index: Some(1),
                    }
                }),
            });
            record(&mut pass)?;
        }
        if let Some(Stamps { queries, resolved }) = &self.stamps {
            encoder.resolve_query_set(queries, 0..2, resolved, 0);
        }
        let commands = encoder.finish();
        let started = Instant::now();
        self.queue.submit([commands]);
        self.wait()?;
        let waited = started.elapsed();
        let Some(stamps) = &self.stamps else {
            return Ok(waited);
        };
        let bytes = self.read(&stamps.resolved, STAMPS)?;
        let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes);
        let ticks = ticks[1].saturating_sub(ticks[0]);
        let nanoseconds = ticks as f64 * f64::from(self.queue.get_timestamp_period());
        Ok(Duration::from_nanos(nanoseconds as u64))
    }

    fn wait(&self) -> Result<(), Stop> {
        let polled = self.device.poll(wgpu::PollType::wait_indefinitely());
        polled.map_err(|error| format!("waiting for the device: {error}"))?;
        Ok(())
    }

    /// A storage buffer of `size` bytes, a multiple of 4, to be read or filled.
    pub fn buffer(&self, label: &str, size: u64) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    }

    /// A storage buffer that holds `contents`, padded to words.
    pub fn filled(&self, label: &str, contents: &[u8]) -> wgpu::Buffer {
        let mut bytes = contents.to_vec();
        bytes.resize(contents.len().next_multiple_of(4).max(4), 0);
        let buffer = self.buffer(label, bytes.len() as u64);
        self.queue.write_buffer(&buffer, 0, &bytes);
        buffer
    }

    /// A uniform.
    pub fn uniform(&self, words: &[u32]) -> wgpu::Buffer {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("bench uniform"),
            size: bytes.len() as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, bytes);
        buffer
    }

    /// The first `size` bytes of a buffer.
    pub fn read(&self, buffer: &wgpu::Buffer, size: u64) -> Result<Vec<u8>, Stop> {
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("bench readback"),
            size,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, size);
        self.queue.submit([encoder.finish()]);
        // A failure shows where the range is asked for.
        staging.map_async(wgpu::MapMode::Read, .., |_| ());
        self.wait()?;
        let mapped = staging.get_mapped_range(..);
        let mapped = mapped.map_err(|error| format!("reading a result: {error}"))?;
        Ok(mapped.to_vec())
    }

    /// A pipeline of our own over `entry` of `module`, its layout from the shader.
    pub fn pipeline(&self, module: &wgpu::ShaderModule, entry: &str) -> wgpu::ComputePipeline {
        self.device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(entry),
                layout: None,
                module,
                entry_point: Some(entry),
                compilation_options: Default::default(),
                cache: None,
            })
    }

    /// Whole buffers at the given bindings of group 0.
    pub fn bind(
        &self,
        pipeline: &wgpu::ComputePipeline,
        buffers: &[(u32, &wgpu::Buffer)],
    ) -> wgpu::BindGroup {
        let entries: Vec<_> = buffers
            .iter()
            .map(|&(binding, buffer)| wgpu::BindGroupEntry {
                binding,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("bench"),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        })
    }

    pub fn module(&self, label: &str, text: &str) -> wgpu::ShaderModule {
        self.device
            .create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(label),
                source: wgpu::ShaderSource::Wgsl(text.into()),
            })
    }
}

/// Processor time is told in hundredths of a second: less than this says nothing.
pub const LEAST_PROCESSOR_TIME: Duration = Duration::from_millis(100);

/// Processor time of this process so far, all threads, where the system tells.
pub fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the program's name, which may hold spaces: user and system time
    // are fields 14 and 15 of the line, in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// The processor's name and its threads, where the system tells.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let threads = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}, {threads} threads",
        name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
    )
}
