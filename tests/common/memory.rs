//! Contents of buffers as the host lays them out: strided places between guard
//! bands, and a record of which bytes may be written.

use wgpu_attention::{Attention, DType};

/// Bytes between operands.
pub const GUARD: usize = 64;

/// Fills guard bands, holes and outputs: NaN in every storage type, a huge
/// count, a true mask.
pub const POISON: u8 = 0xff;

/// Memory order of query, key, value and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// (B, H, S, D).
    #[default]
    HeadMajor,
    /// (B, S, H, D).
    TokenMajor,
    /// Query, key and value of a token side by side; needs Nq = Nk and Dqk = Dv.
    Packed,
    /// (B, H, S, D) with an odd number of elements between rows, heads and entries.
    Padded,
    /// One copy of key and value for all batch entries and heads (stride 0);
    /// they have to be equal.
    Expanded,
    /// One copy of the last key row for all keys too.
    Repeated,
}

/// A strided place in one of the buffers, in elements.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub buffer: usize,
    pub offset: usize,
    pub size: usize,
    pub shape: [usize; 4],
    pub strides: [usize; 4],
}

impl Place {
    /// Byte ranges of the elements in row-major order.
    pub fn elements(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let [a, b, c, d] = self.shape;
        (0..a * b * c * d).map(move |flat| {
            let index = [
                flat / (b * c * d),
                flat / (c * d) % b,
                flat / d % c,
                flat % d,
            ];
            let steps = index.iter().zip(self.strides).map(|(i, stride)| i * stride);
            let at = (self.offset + steps.sum::<usize>()) * self.size;
            at..at + self.size
        })
    }

    /// Its elements in the bytes of its buffer, widened to f32.
    pub fn widened(self, bytes: &[u8], dtype: DType) -> Vec<f32> {
        let elements = self.elements();
        elements
            .map(|range| widened(&bytes[range], dtype))
            .collect()
    }
}

/// Contents of a buffer, and which bytes may be written.
#[derive(Debug, Default, Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub written: Vec<bool>,
}

impl Image {
    pub fn grow(&mut self, len: usize) {
        self.bytes.resize(len, POISON);
        self.written.resize(len, false);
    }
}

#[derive(Debug, Default)]
pub struct Images {
    pub one: bool,
    pub shift: usize,
    pub skip: usize,
    pub list: Vec<Image>,
}

impl Images {
    /// Room for `elements` between guard bands.
    pub fn reserve(&mut self, elements: usize, size: usize) -> (usize, usize) {
        if !self.one || self.list.is_empty() {
            self.list.push(Image::default());
        }
        let buffer = self.list.len() - 1;
        let image = &mut self.list[buffer];
        if image.bytes.is_empty() {
            image.grow(self.skip);
        }
        let start = (image.bytes.len() + GUARD).next_multiple_of(4) + self.shift * size;
        image.grow((start + elements * size + GUARD).next_multiple_of(4));
        (buffer, start / size)
    }

    pub fn place(&mut self, size: usize, shape: [usize; 4], strides: [usize; 4]) -> Place {
        let steps = shape
            .iter()
            .zip(strides)
            .map(|(&n, stride)| n.saturating_sub(1) * stride);
        let extent = match shape.contains(&0) {
            true => 0,
            false => steps.sum::<usize>() + 1,
        };
        let (buffer, offset) = self.reserve(extent, size);
        Place {
            buffer,
            offset,
            size,
            shape,
            strides,
        }
    }

    pub fn fill(&mut self, place: Place, data: &[u8]) {
        let bytes = &mut self.list[place.buffer].bytes;
        for (range, element) in place.elements().zip(data.chunks_exact(place.size)) {
            bytes[range].copy_from_slice(element);
        }
    }

    /// Data in row-major order, contiguous.
    pub fn put(&mut self, size: usize, shape: [usize; 4], data: &[u8]) -> Place {
        let place = self.place(size, shape, contiguous(shape));
        self.fill(place, data);
        place
    }

    pub fn put_list<T: bytemuck::Pod>(&mut self, list: &Option<Vec<T>>) -> Option<Place> {
        let list = list.as_ref()?;
        Some(self.put(4, [1, 1, 1, list.len()], bytemuck::cast_slice(list)))
    }

    pub fn mark_written(&mut self, place: Place) {
        for range in place.elements() {
            self.list[place.buffer].written[range].fill(true);
        }
    }
}

pub fn contiguous([_, b, c, d]: [usize; 4]) -> [usize; 4] {
    [b * c * d, c * d, d, 1]
}

pub fn strides(layout: Layout, shape: [usize; 4], is_input_of_keys: bool) -> [usize; 4] {
    let [_, heads, rows, dim] = shape;
    match layout {
        Layout::HeadMajor | Layout::Packed => contiguous(shape),
        Layout::TokenMajor => [rows * heads * dim, dim, heads * dim, 1],
        Layout::Padded => {
            let head = rows * (dim + 3) + 5;
            [heads * head + 7, head, dim + 3, 1]
        }
        Layout::Expanded if is_input_of_keys => [0, 0, dim, 1],
        Layout::Repeated if is_input_of_keys => [0, 0, 0, 1],
        Layout::Expanded | Layout::Repeated => contiguous(shape),
    }
}

/// Buffers that hold the images.
pub fn create(device: &wgpu::Device, images: &[Image]) -> Vec<wgpu::Buffer> {
    let create = |image: &Image| {
        let buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("guest"),
            size: image.bytes.len() as u64,
            usage: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: true,
        });
        let mut mapped = buffer.get_mapped_range_mut(..).unwrap();
        mapped.copy_from_slice(&image.bytes);
        drop(mapped);
        buffer.unmap();
        buffer
    };
    images.iter().map(create).collect()
}

/// The contents of buffers that were made from images.
///
/// # Errors
/// If any byte has changed that may not be written.
pub fn read_back(
    gpu: &Attention,
    buffers: &[wgpu::Buffer],
    images: &[Image],
) -> Result<Vec<Vec<u8>>, String> {
    let (device, queue) = (gpu.device(), gpu.queue());
    let mut encoder = device.create_command_encoder(&Default::default());
    let staged: Vec<wgpu::Buffer> = buffers
        .iter()
        .map(|buffer| {
            let staging = device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: buffer.size(),
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
            staging
        })
        .collect();
    queue.submit([encoder.finish()]);
    for staging in &staged {
        staging.map_async(wgpu::MapMode::Read, .., |_| ());
    }
    device
        .poll(wgpu::PollType::wait_indefinitely())
        .map_err(|e| e.to_string())?;
    let mut contents = Vec::new();
    for (index, (staging, image)) in staged.iter().zip(images).enumerate() {
        let mapped = staging.get_mapped_range(..).map_err(|e| e.to_string())?;
        let bytes = mapped.to_vec();
        let allowed = image.bytes.iter().zip(&image.written);
        let changed = bytes
            .iter()
            .zip(allowed)
            .position(|(now, (was, free))| now != was && !free);
        if let Some(at) = changed {
            return Err(format!("byte {at} of buffer {index} was overwritten"));
        }
        contents.push(bytes);
    }
    Ok(contents)
}

fn widened(bytes: &[u8], dtype: DType) -> f32 {
    match dtype {
        DType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        DType::F16 => half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        DType::BF16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
    }
}
