// A cell of workgroup memory: 4 numbers.

alias Cell = vec4<f32>;

fn to_cell(x: vec4<f32>) -> Cell {
    return x;
}

fn narrow_cell(cell: Cell) -> vec4<f32> {
    return cell;
}
