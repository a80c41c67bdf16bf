// Values of `params.stage`: how far the scores go.

const STAGE_SOFTCAPPED: u32 = 1u;
const STAGE_MASKED: u32 = 2u;
const STAGE_WEIGHTS: u32 = 4u;
