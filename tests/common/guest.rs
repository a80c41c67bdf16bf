//! A case in buffers of the test's own, run through the guest API: outputs are
//! poisoned beforehand, every operand lies between guard bands, and whatever is
//! not an output has to be unchanged afterwards.

use wgpu_attention::{
    Attention, DType, Dims, Error, List, MaskView, Operands, Plan, PlanOptions, Prepared, Problem,
    Region, Stage, Stats, StatsView, TensorView, Workspace,
};

use super::memory::{GUARD, Image, Images, Layout, Place, create, read_back, strides};
use crate::common::{MaskBits, OwnedCase};

/// How a case is laid out and what is asked for.
#[derive(Debug, Clone)]
pub struct Setup {
    pub plan: PlanOptions,
    pub stats: Option<Stats>,
    pub stage: Option<(Stage, Region)>,
    pub layout: Layout,
    /// Elements by which every operand is off its 4-byte alignment.
    pub shift: usize,
    /// Bytes before the first operand of every buffer.
    pub skip: usize,
    /// Every operand and the workspace in one buffer.
    pub one_buffer: bool,
    /// Lists come from buffers.
    pub device_lists: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            plan: PlanOptions::default(),
            stats: Some(Stats::Lse),
            stage: None,
            layout: Layout::HeadMajor,
            shift: 0,
            skip: 0,
            one_buffer: false,
            device_lists: false,
        }
    }
}

/// What a run left.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Widened to f32.
    pub output: Vec<f32>,
    pub stats: Vec<f32>,
}

#[derive(Debug)]
struct Places {
    query: Place,
    key: Place,
    value: Place,
    output: Place,
    stats: Option<Place>,
    bias: Option<Place>,
    mask: Option<Place>,
    /// Lengths of keys and queries, offsets, segments of queries and keys, slopes, sinks.
    lists: [Option<Place>; 7],
}

/// A case in buffers, planned and prepared.
#[derive(Debug)]
pub struct Guest<'a> {
    gpu: &'a Attention,
    case: &'a OwnedCase,
    setup: Setup,
    places: Places,
    images: Vec<Image>,
    pub buffers: Vec<wgpu::Buffer>,
    workspace: Option<(usize, u64)>,
    pub prepared: Prepared,
}

impl<'a> Guest<'a> {
    pub fn new(gpu: &'a Attention, case: &'a OwnedCase, setup: &Setup) -> Result<Self, String> {
        let mut images = Images {
            one: setup.one_buffer,
            shift: setup.shift,
            skip: setup.skip,
            ..Images::default()
        };
        let places = lay_out(case, setup, &mut images);
        let mut images = images.list;
        let mut setup = setup.clone();
        if setup.one_buffer {
            // The workspace will be in it as well.
            setup.plan = setup.plan.shared_buffers(true);
        }
        let buffers = create(gpu.device(), &images);
        let plan = plan(gpu, case, &setup, &places, &buffers).map_err(|e| e.to_string())?;
        let bytes = plan.workspace_bytes() as usize;
        let mut workspace = None;
        if bytes > 0 {
            if !setup.one_buffer {
                images.push(Image::default());
            }
            let image = images.last_mut().unwrap();
            let start = (image.bytes.len() + GUARD).next_multiple_of(256);
            image.grow((start + bytes + GUARD).next_multiple_of(4));
            image.written[start..start + bytes].fill(true);
            workspace = Some((images.len() - 1, start as u64));
        }
        let buffers = create(gpu.device(), &images);
        let prepared = gpu.prepare(&plan).map_err(|e| e.to_string())?;
        Ok(Guest {
            gpu,
            case,
            setup,
            places,
            images,
            buffers,
            workspace,
            prepared,
        })
    }

    /// Plans, records, submits, reads.
    pub fn run(gpu: &'a Attention, case: &'a OwnedCase, setup: &Setup) -> Result<Ran, String> {
        let guest = Guest::new(gpu, case, setup)?;
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        guest
            .record(&guest.prepared, &mut encoder)
            .map_err(|e| e.to_string())?;
        gpu.queue().submit([encoder.finish()]);
        guest.read()
    }

    pub fn operands(&self) -> Result<Operands<'_>, Error> {
        operands(self.case, &self.setup, &self.places, &self.buffers)
    }

    pub fn workspace(&self) -> Option<Workspace<'_>> {
        self.workspace.map(|(buffer, offset)| Workspace {
            buffer: &self.buffers[buffer],
            offset,
        })
    }

    /// Records a plan, which may be another guest's, over this guest's buffers.
    pub fn record(
        &self,
        prepared: &Prepared,
        encoder: &mut wgpu::CommandEncoder,
    ) -> Result<(), Error> {
        prepared.record(encoder, &self.operands()?, self.workspace())
    }

    /// Reads the outputs back.
    ///
    /// # Errors
    /// If any byte besides the outputs and the workspace has changed.
    pub fn read(&self) -> Result<Ran, String> {
        let contents = read_back(self.gpu, &self.buffers, &self.images)
            .map_err(|e| format!("{e} ({:?})", self.places))?;
        let widen = |place: Place, dtype: DType| place.widened(&contents[place.buffer], dtype);
        let out = if self.setup.stage.is_some() {
            DType::F32
        } else {
            self.case.out
        };
        Ok(Ran {
            output: widen(self.places.output, out),
            stats: self
                .places
                .stats
                .map_or_else(Vec::new, |place| widen(place, DType::F32)),
        })
    }
}

fn lay_out(case: &OwnedCase, setup: &Setup, images: &mut Images) -> Places {
    let Dims {
        batch,
        q_heads,
        kv_heads,
        q_len,
        kv_len,
        qk_dim,
        v_dim,
    } = case.dims;
    let shapes = [
        [batch, q_heads, q_len, qk_dim],
        [batch, kv_heads, kv_len, qk_dim],
        [batch, kv_heads, kv_len, v_dim],
    ];
    let inputs = [&case.query, &case.key, &case.value];
    let [query, key, value] = if setup.layout == Layout::Packed {
        let size = case.query.dtype().size() as usize;
        let row = (q_heads + 2 * kv_heads) * qk_dim;
        let (buffer, start) = images.reserve(batch * q_len * row, size);
        let heads = [0, q_heads, q_heads + kv_heads];
        [0, 1, 2].map(|n| {
            let offset = start + heads[n] * qk_dim;
            let strides = [q_len * row, qk_dim, row, 1];
            Place {
                buffer,
                offset,
                size,
                shape: shapes[n],
                strides,
            }
        })
    } else {
        [0, 1, 2].map(|n| {
            let strides = strides(setup.layout, shapes[n], n > 0);
            images.place(inputs[n].dtype().size() as usize, shapes[n], strides)
        })
    };
    for (place, elements) in [query, key, value].into_iter().zip(inputs) {
        images.fill(place, elements.data().bytes());
    }
    let (out_size, out_shape) = match &setup.stage {
        Some((_, region)) => {
            let [b, h, n] = region.lens();
            (4, [b, h, n, kv_len])
        }
        None => (case.out.size() as usize, case.dims.output_shape()),
    };
    let output = images.place(out_size, out_shape, strides(setup.layout, out_shape, false));
    images.mark_written(output);
    let stats = setup.stats.filter(|_| setup.stage.is_none()).map(|kind| {
        let width = if kind == Stats::Lse { 1 } else { 2 };
        let place = images.put(4, [batch, q_heads, q_len, width], &[]);
        images.mark_written(place);
        place
    });
    let bias = case
        .bias
        .as_ref()
        .map(|(bias, shape)| images.put(bias.dtype().size() as usize, *shape, bias.data().bytes()));
    let mask = case.mask.as_ref().map(|mask| match &mask.data {
        MaskBits::Bytes(bytes) => images.put(1, mask.shape, bytes),
        MaskBits::Bits(words) => {
            let [b, h, n, keys] = mask.shape;
            images.put(4, [b, h, n, keys.div_ceil(32)], bytemuck::cast_slice(words))
        }
    });
    let mut lists = [None; 7];
    if setup.device_lists {
        let segments = case.segments.clone().unzip();
        lists = [
            images.put_list(&case.kv_lengths),
            images.put_list(&case.q_lengths),
            images.put_list(&case.offsets),
            images.put_list(&segments.0),
            images.put_list(&segments.1),
            images.put_list(&case.alibi_slopes),
            images.put_list(&case.sinks),
        ];
    }
    Places {
        query,
        key,
        value,
        output,
        stats,
        bias,
        mask,
        lists,
    }
}

fn plan(
    gpu: &Attention,
    case: &OwnedCase,
    setup: &Setup,
    places: &Places,
    buffers: &[wgpu::Buffer],
) -> Result<Plan, Error> {
    let operands = operands(case, setup, places, buffers)?;
    let problem = match &setup.stage {
        Some((stage, region)) => Problem::stage(&operands, &case.options, *stage, region.clone())?,
        None => Problem::forward(&operands, &case.options)?,
    };
    Plan::new(&problem, gpu.caps(), &setup.plan)
}

fn operands<'b>(
    case: &'b OwnedCase,
    setup: &Setup,
    places: &Places,
    buffers: &'b [wgpu::Buffer],
) -> Result<Operands<'b>, Error> {
    let view = |place: Place, dtype: DType| {
        let Place {
            offset,
            shape,
            strides,
            ..
        } = place;
        let buffer = &buffers[place.buffer];
        match setup.layout {
            Layout::HeadMajor => TensorView::bhsd(buffer, dtype, shape, offset),
            Layout::TokenMajor => TensorView::bshd(buffer, dtype, shape, offset),
            _ => TensorView::strided(buffer, dtype, shape, strides, offset),
        }
    };
    let Dims {
        batch,
        q_heads,
        kv_heads,
        q_len,
        qk_dim,
        ..
    } = case.dims;
    let out = if setup.stage.is_some() {
        DType::F32
    } else {
        case.out
    };
    let output = view(places.output, out)?;
    let [query, key, value] = match setup.layout {
        Layout::Packed => {
            let place = places.query;
            let buffer = &buffers[place.buffer];
            let heads = (q_heads, kv_heads);
            let dtype = case.query.dtype();
            TensorView::packed_qkv(buffer, dtype, batch, q_len, heads, qk_dim, place.offset)?
        }
        _ => [
            view(places.query, case.query.dtype())?,
            view(places.key, case.key.dtype())?,
            view(places.value, case.value.dtype())?,
        ],
    };
    let mut operands = Operands::new(query, key, value, output);
    if let (Some(place), Some(kind)) = (places.stats, setup.stats) {
        let rows = [batch, q_heads, q_len];
        operands.stats = Some(StatsView::new(
            &buffers[place.buffer],
            kind,
            rows,
            place.offset,
        )?);
    }
    if let (Some(place), Some((bias, shape))) = (places.bias, &case.bias) {
        let buffer = &buffers[place.buffer];
        operands.bias = Some(TensorView::bhsd(
            buffer,
            bias.dtype(),
            *shape,
            place.offset,
        )?);
    }
    if let (Some(place), Some(mask)) = (places.mask, &case.mask) {
        let buffer = &buffers[place.buffer];
        operands.mask = Some(match &mask.data {
            MaskBits::Bytes(_) => MaskView::bytes(buffer, mask.shape, place.offset, mask.polarity)?,
            MaskBits::Bits(_) => MaskView::bits(buffer, mask.shape, place.offset, mask.polarity)?,
        });
    }
    fn list<'b, T>(
        values: Option<&'b [T]>,
        place: Option<Place>,
        buffers: &'b [wgpu::Buffer],
    ) -> Option<List<'b, T>> {
        let values = values?;
        Some(match place {
            None => List::Host(values),
            Some(place) => List::Buffer {
                buffer: &buffers[place.buffer],
                offset: place.offset,
                len: values.len(),
            },
        })
    }
    let [
        kv_lengths,
        q_lengths,
        offsets,
        q_segments,
        kv_segments,
        slopes,
        sinks,
    ] = places.lists;
    operands.kv_lengths = list(case.kv_lengths.as_deref(), kv_lengths, buffers);
    operands.q_lengths = list(case.q_lengths.as_deref(), q_lengths, buffers);
    operands.offsets = list(case.offsets.as_deref(), offsets, buffers);
    let segments = case.segments.as_ref();
    operands.q_segments = list(segments.map(|s| &s.0[..]), q_segments, buffers);
    operands.kv_segments = list(segments.map(|s| &s.1[..]), kv_segments, buffers);
    operands.alibi_slopes = list(case.alibi_slopes.as_deref(), slopes, buffers);
    operands.sinks = list(case.sinks.as_deref(), sinks, buffers);
    Ok(operands)
}
