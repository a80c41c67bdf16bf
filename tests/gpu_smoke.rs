use wgpu_attention::*;
#[test]
fn smoke() {
    let a = Attention::on_default_adapter().unwrap();
    println!("{}", a.adapter_line());
    let (b, h, n, m, d, dv) = (2usize, 3usize, 70usize, 45usize, 24usize, 20usize);
    let mut s = 1u32;
    let mut r = || {
        s = s.wrapping_mul(1664525).wrapping_add(1013904223);
        (s >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let q: Vec<f32> = (0..b * h * n * d).map(|_| r()).collect();
    let k: Vec<f32> = (0..b * h * m * d).map(|_| r()).collect();
    let v: Vec<f32> = (0..b * h * m * dv).map(|_| r()).collect();
    for causal in [false, true] {
        for kernel in [Kernel::Fused, Kernel::Staged] {
            let options = Options::default().causal(causal);
            let inputs = Inputs::new(
                Tensor::f32(&q, [b, h, n, d]).unwrap(),
                Tensor::f32(&k, [b, h, m, d]).unwrap(),
                Tensor::f32(&v, [b, h, m, dv]).unwrap(),
            );
            let up = a
                .upload(
                    &inputs,
                    &options,
                    DType::F32,
                    &PlanOptions::default().kernel(kernel),
                )
                .unwrap();
            println!("{}", up.plan());
            println!("{:?}", up.run().unwrap());
            println!("{:?}", up.run().unwrap());
            let out = up.read().unwrap();
            let mut worst = 0f64;
            for bi in 0..b {
                for hi in 0..h {
                    for i in 0..n {
                        let g = bi * h + hi;
                        let sc: Vec<f64> = (0..m)
                            .map(|j| {
                                (0..d)
                                    .map(|x| {
                                        q[(g * n + i) * d + x] as f64
                                            * k[(g * m + j) * d + x] as f64
                                    })
                                    .sum::<f64>()
                                    / (d as f64).sqrt()
                            })
                            .collect();
                        let vis =
                            |j: usize| !causal || (j as i64) <= i as i64 + m as i64 - n as i64;
                        let mx = (0..m)
                            .filter(|&j| vis(j))
                            .map(|j| sc[j])
                            .fold(f64::NEG_INFINITY, f64::max);
                        let l: f64 = (0..m).filter(|&j| vis(j)).map(|j| (sc[j] - mx).exp()).sum();
                        let lse = mx + l.ln();
                        if l == 0.0 {
                            assert_eq!(out.lse[g * n + i], f32::NEG_INFINITY);
                        } else {
                            worst = worst.max((lse - out.lse[g * n + i] as f64).abs());
                        }
                        for x in 0..dv {
                            let o: f64 = if l == 0.0 {
                                0.0
                            } else {
                                (0..m)
                                    .filter(|&j| vis(j))
                                    .map(|j| {
                                        (sc[j] - mx).exp() / l * v[(g * m + j) * dv + x] as f64
                                    })
                                    .sum()
                            };
                            worst = worst.max((o - out.output[(g * n + i) * dv + x] as f64).abs());
                        }
                    }
                }
            }
            println!("causal {causal} {kernel:?} worst {worst:e}");
            assert!(worst < 1e-5);
        }
    }
}
